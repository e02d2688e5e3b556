"""The transfers between the blocks of a step, as operations: recorded as messages, or estimated from the blocks.

Where both sides of a message were recorded, send and receive are operations that end together. Elsewhere the time from
the end of the producer to the start of the consumer shows how long a transfer takes, whenever the consumer had nothing
else to wait for; where it had, the transfer is taken to last as long as the others between these ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.model import WORD, Profile
from trace_export.pipeline.operations import Part
from trace_export.schedules.operation_types import BR, BS, FR, FS
from trace_export.schedules.step_graph import Ints, Waits

if TYPE_CHECKING:
    from trace_export.pipeline.block_operations import Blocks

POSTED_NS = 1_000_000
"""A transfer that starts so long before a block ends may still have been posted after it: time stamps of streams and
host differ (the same place in every step of three real jobs from 0.2 to 5 ms)."""
QUEUED_NS = 50_000
"""A send that starts no earlier than this before the end of the one before has waited for it."""


@dataclass(frozen=True)
class Transfers:
    """The transfers of a step. `direct`: consumer and producer of the same rank (numbers of blocks). `before`: the
    blocks that an operation waits for; `consumer` (-1: none): the one that waits for it. `queued`: pairs of an
    operation and the one before it on its link. `level`: see `Operations`."""

    part: Part
    before: list[list[int]]
    consumer: list[int]
    queued: list[tuple[int, int]]
    direct: list[tuple[int, int]]
    level: str

    def connect(self, waits: Waits, first: int) -> None:
        """Adds what these operations, the first of which has the number `first`, wait for, and what waits for them."""
        for n, (before, consumer) in enumerate(zip(self.before, self.consumer, strict=True)):
            waits.add(first + n, *before)
            if consumer >= 0:
                waits.add(consumer, first + n)
        for later, earlier in self.queued:
            waits.add(first + later, first + earlier)


class Edge(NamedTuple):
    """A dependency between two blocks, by their numbers; `direction` F or B."""

    producer: int
    consumer: int
    direction: str


def transfers(profile: Profile, blocks: Blocks, streams: list[list[int]], edges: list[Edge]) -> Transfers:
    """The transfers along `edges`. `streams`: the blocks of each stage in order."""
    direct = [(dst, src) for src, dst, _ in edges if blocks.stage[src] == blocks.stage[dst]]
    crossing = [edge for edge in edges if blocks.stage[edge[0]] != blocks.stage[edge[1]]]
    times = _message_times(profile, blocks, crossing)
    recorded = [n for n in range(len(times)) if (times[n] != _NO_TIME).all()]
    known = set(recorded)
    estimated = _estimates(blocks, streams, crossing, [n for n in range(len(crossing)) if n not in known])
    made = _Made(blocks, streams)
    for n, edge in enumerate(crossing):
        if n in known:
            made.message(edge, times[n])
        else:
            made.estimate(edge, estimated[n])
    level = "messages" if crossing and 2 * len(recorded) >= len(crossing) else "blocks"
    return made.finish(direct, level)


_NO_TIME = np.iinfo(np.int64).min


def block_edges(profile: Profile, blocks: Blocks) -> list[Edge]:
    """The edges of the profile's interpretation in the first replica and step."""
    rows = profile.edge_rows()
    number = np.full(profile.spans.height, -1, np.int64)
    reference = blocks.span[:, 0, 0]
    number[reference] = np.arange(len(reference))
    src, dst = (number[rows[c].to_numpy()] for c in ("src", "dst"))
    inside = np.flatnonzero((src >= 0) & (dst >= 0))
    direction = rows["direction"].gather(inside).to_list()
    found = zip(src[inside].tolist(), dst[inside].tolist(), direction, strict=True)
    return sorted((Edge(*edge) for edge in found), key=lambda edge: (edge.consumer, edge.producer))


def _message_times(profile: Profile, blocks: Blocks, edges: list[Edge]) -> Ints:
    """Edge × 4 (start and end of send and receive) × replica × step; `_NO_TIME` where there is no message, and no edge
    where there are no messages at all.

    The message of an edge is the last of those between its blocks to end before the consumer starts.
    """
    _, replicas, steps = blocks.start.shape
    columns = ["send_start_ns", "send_end_ns", "recv_start_ns", "recv_end_ns"]
    messages = profile.message_rows().drop_nulls(columns)
    if messages.is_empty() or not edges:
        return np.zeros((0, 4, replicas, steps), np.int64)
    times = np.full((len(edges), 4, replicas, steps), _NO_TIME, np.int64)
    src, dst = (np.array([e[n] for e in edges]) for n in (0, 1))
    cells = np.indices((len(edges), replicas, steps)).reshape(3, -1)
    edge, replica, step = cells
    wanted = pl.DataFrame({
        "cell": np.arange(len(edge)), "src": blocks.span[src[edge], replica, step],
        "dst": blocks.span[dst[edge], replica, step],
        "direction": pl.Series([e[2] for e in edges], dtype=WORD).gather(edge),
        "due": blocks.start[dst[edge], replica, step] + POSTED_NS,
    }).with_columns(pl.col("src", "dst").cast(pl.UInt32))  # fmt: skip
    met = wanted.join(messages.select("src", "dst", "direction", *columns), on=["src", "dst", "direction"])
    met = met.filter(pl.col("recv_end_ns") <= pl.col("due")).sort("recv_end_ns").unique("cell", keep="last")
    edge, replica, step = cells[:, met["cell"].to_numpy()]
    times[edge, :, replica, step] = met.select(columns).to_numpy()
    return times


def _estimates(
    blocks: Blocks, streams: list[list[int]], edges: list[Edge], wanted: list[int]
) -> dict[int, npt.NDArray[np.int64]]:
    """For each edge of `wanted`: how long its transfer took, replica × step."""
    previous = {i: before for stream in streams for before, i in pairwise(stream)}
    inputs: dict[int, list[int]] = {}
    for src, dst, _ in edges:
        inputs.setdefault(dst, []).append(src)
    idle = _launch_delays(blocks, streams, previous, inputs)
    gaps, exposed, found = {}, {}, {}
    links: dict[tuple[int, int, str], list[int]] = {}
    lowest = np.full(blocks.start.shape[1:], _NO_TIME, np.int64)
    for n in wanted:
        src, dst, direction = edges[n]
        others = [blocks.end[i] for i in (*inputs[dst], *([previous[dst]] if dst in previous else [])) if i != src]
        ready = np.maximum.reduce(others) if others else lowest
        gap = gaps[n] = blocks.start[dst] - blocks.end[src]
        exposed[n] = (blocks.end[src] >= ready) & (gap >= 0)
        late = idle[int(blocks.stage[dst])] if dst in previous else 0  # before its first block a rank does nothing
        found[n] = np.maximum(gap - late, 0) * (gap > 0)
        links.setdefault((int(blocks.stage[src]), int(blocks.stage[dst]), direction), []).append(n)
    usual = {link: _usual([found[n][exposed[n]] for n in members]) for link, members in links.items()}
    for direction in ("F", "B"):
        known = [u for (_, _, d), u in usual.items() if d == direction and u is not None]
        for link, members in links.items():
            if link[2] != direction:
                continue
            own = usual[link]
            middle = own if own is not None else int(np.median(known)) if known else 0
            for n in members:
                least = np.clip(gaps[n], 0, middle)  # of what was exposed, the delay may have been shorter than usual
                found[n] = np.where(exposed[n], np.maximum(found[n], least), least)
    return found


def _usual(parts: list[npt.NDArray[np.int64]]) -> int | None:
    values = np.concatenate(parts)
    return int(np.median(values)) if len(values) else None


def _launch_delays(
    blocks: Blocks, streams: list[list[int]], previous: dict[int, int], inputs: dict[int, list[int]]
) -> list[npt.NDArray[np.int64]]:
    """Per stage and replica: the usual time between two blocks when the input of the second was there long before."""
    delays = []
    for stream in streams:
        late = []
        for i in stream:
            before = previous.get(i)
            if before is None:
                continue
            length = blocks.end[before] - blocks.start[before]
            there = np.ones(length.shape, np.bool_)
            for source in inputs.get(i, ()):
                there &= blocks.end[source] + length // 2 <= blocks.end[before]
            late.append(np.where(there, blocks.start[i] - blocks.end[before], _NO_TIME))
        delays.append(_medians(late, blocks.start.shape[1]))
    return delays


def _medians(late: list[npt.NDArray[np.int64]], replicas: int) -> npt.NDArray[np.int64]:
    values = np.array(late).reshape(len(late), replicas, -1) if late else np.zeros((0, replicas, 0), np.int64)
    found = np.zeros((replicas, 1), np.int64)
    for a in range(replicas):
        known = values[:, a][values[:, a] != _NO_TIME]
        if len(known):
            found[a, 0] = max(int(np.median(known)), 0)
    return found


class _Made:
    """The operations of transfers under construction."""

    def __init__(self, blocks: Blocks, streams: list[list[int]]) -> None:
        self.blocks, self.streams = blocks, streams
        self.types: list[str] = []
        self.places: list[tuple[int, int, int, int]] = []
        self.times: list[tuple[Ints, Ints]] = []
        self.before: list[list[int]] = []
        self.consumer: list[int] = []
        self.groups: list[list[int]] = []
        self.sends: dict[tuple[int, int, str], list[int]] = {}

    def message(self, edge: Edge, times: Ints) -> None:
        """A send and a receive, which end together."""
        src, dst, direction = edge
        send, receive = (FS, FR) if direction == "F" else (BS, BR)
        self.sends.setdefault((*self._stages(edge), direction), []).append(len(self.types))
        self.groups.append([len(self.types), len(self.types) + 1])
        producer, consumer = self._stages(edge)
        self._add(send, (producer, consumer), dst, (times[0], times[1]), [src], -1)
        self._add(receive, (consumer, producer), dst, (times[2], times[3]), self._posted(dst, times[2]), dst)

    def estimate(self, edge: Edge, length: Ints) -> None:
        """A transfer that begins when its data are made."""
        src, dst, direction = edge
        self.groups.append([len(self.types)])
        begin = self.blocks.end[src]
        stages = self._stages(edge)[::-1]
        self._add(FR if direction == "F" else BR, stages, dst, (begin, begin + length), [src], dst)

    def _stages(self, edge: Edge) -> tuple[int, int]:
        return int(self.blocks.stage[edge[0]]), int(self.blocks.stage[edge[1]])

    def _add(
        self, name: str, stages: tuple[int, int], dst: int, times: tuple[Ints, Ints], before: list[int], consumer: int
    ) -> None:
        self.types.append(name)
        self.places.append((*stages, int(self.blocks.chunk[dst]), int(self.blocks.microbatch[dst])))
        self.times.append(times)
        self.before.append(before)
        self.consumer.append(consumer)

    def _posted(self, dst: int, start: Ints) -> list[int]:
        """The block after which a receive was posted: the last to end before it starts, in every replica and step."""
        stream = self.streams[int(self.blocks.stage[dst])]
        stream = stream[: stream.index(dst)]
        if not stream:
            return []
        ended = self.blocks.end[stream] <= start + POSTED_NS
        place = int(np.logical_and.accumulate(ended, axis=0).sum(axis=0).min())
        return [stream[place - 1]] if place else []

    def finish(self, direct: list[tuple[int, int]], level: str) -> Transfers:
        shape = (0, *self.blocks.start.shape[1:])
        start, end = (np.stack([t[n] for t in self.times]) if self.times else np.zeros(shape, np.int64) for n in (0, 1))
        stage, peer, chunk, microbatch = np.array(self.places, np.int64).reshape(-1, 4).T
        queued = []
        for sends in self.sends.values():
            order = sorted(sends, key=lambda i: int(start[i, 0, 0]))
            queued += [(b, a) for a, b in pairwise(order) if (start[b] >= end[a] - QUEUED_NS).all()]
        numbers = {"peer": peer, "chunk": chunk - 1, "microbatch": microbatch - 1}
        part = Part(self.types, stage, start, end, numbers, self.groups, [False] * len(self.groups))
        return Transfers(part, self.before, self.consumer, queued, direct, level)
