"""Random pipelines over several hosts whose clocks are wrong by a known amount."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from samples.generators.pipeline import MS, US, in_feasible_order, one_f_one_b, source_of
from trace_export.model import COLLECTIVES, HOSTS, MESSAGES, P2P, RANKS, SPANS, Profile, Schema, conform
from trace_export.pipeline.collectives import number

START_NS = 1_750_000_000_000_000_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Clocks:
    """What is wrong with the clocks, and how the transfers behave."""

    seed: int = 0
    stages: int = 4
    replicas: int = 1
    microbatches: int = 6
    steps: int = 2
    ranks_per_host: int = 1
    offset_us: float = 4000.0
    drift_ppm: float = 15.0
    eager: float = 0.0
    jitter_us: float = 30.0
    cut_ms: float = 0.0
    lags_us: tuple[float, float] = (12.0, 12.0)
    over_stages: bool = False
    set_us: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Host → when its clock is set, as a share of the run, and by how much."""


@dataclass
class Run:
    """Tables as a reader would give them; `paired` the true messages; the true offset (ns at START_NS) and rate of each
    host, and the true time of the middle of the run; the true step of each side of a transfer, by its rank and end."""

    profile: Profile
    paired: pl.DataFrame
    offset: dict[str, float] = field(default_factory=dict)
    rate: dict[str, float] = field(default_factory=dict)
    middle_ns: int = START_NS
    step_of: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def numbered(self) -> Profile:
        """The profile whose collectives are numbered alike on all ranks."""
        return number(self.profile)

    def misplaced_us(self, clocks: pl.DataFrame) -> dict[str, float]:
        """How far each host of `clocks` lies from where it belongs (mid-window, less the mean of all hosts), in µs."""
        middle, left = self.middle_ns, {}
        for host, offset, drift, reference in clocks.select("host", "offset_ns", "drift", "reference_ns").iter_rows():
            shown = middle + round(self.offset[host] + self.rate[host] * (middle - START_NS))
            left[host] = (shown - offset - round(drift * (shown - reference)) - middle) / US
        mean = sum(left.values()) / len(left)
        return {host: value - mean for host, value in left.items()}


class _Pipeline:
    """The events of a run in true time, in ns since its start."""

    def __init__(self, c: Clocks) -> None:
        self.c, self.rng = c, random.Random(c.seed)
        self.free = dict.fromkeys(range(c.stages * c.replicas), 0.0)
        self.spans: list[Row] = []
        self.sends: list[Row] = []
        self.collectives: list[Row] = []

    def run(self) -> None:
        c = self.c
        for step in range(c.steps):
            for replica in range(c.replicas):
                self.step(step, replica)
            for stage in range(c.stages if c.replicas > 1 else 0):
                self.meet(f"dp{stage}", [r * c.stages + stage for r in range(c.replicas)])
            for replica in range(c.replicas if c.over_stages else 0):
                self.meet(f"pp{replica}", [replica * c.stages + s for s in range(c.stages)])

    def step(self, step: int, replica: int) -> None:
        c = self.c
        orders = [one_f_one_b(stage, c.stages, c.microbatches) for stage in range(c.stages)]
        made: dict[tuple[str, int, int], float] = {}
        for stage, operation in in_feasible_order(orders):
            rank = replica * c.stages + stage
            begin = self.free[rank]
            (half,) = operation.halves()
            kind, m = half.kind, half.microbatch
            source = source_of(half, stage, c.stages)
            if source is not None:
                begin = self.transfer(rank + source[0] - stage, rank, kind, m, made[kind, source[0], m], begin)
                self.sends[-1]["step"] = step
            end = begin + (8 if kind == "F" else 16) * MS * self.rng.uniform(0.95, 1.05)
            self.spans.append({"rank": rank, "step": step, "kind": kind, "microbatch": m, "start": begin, "end": end})
            self.free[rank] = made[kind, stage, m] = end

    def transfer(self, src: int, dst: int, kind: str, m: int, made: float, free: float) -> float:
        rng, c = self.rng, self.c
        sent, posted = made + 4 * US, free + 4 * US
        lag = c.lags_us[kind == "B"] * US * rng.uniform(0.7, 1.3)
        noise = rng.expovariate(1 / (c.jitter_us * US))
        if rng.random() < c.eager:
            gone, arrived = sent + 50 * US, max(sent + 0.8 * MS + lag + noise, posted + 15 * US)
        else:
            gone = max(sent, posted) + 0.8 * MS + noise
            arrived = gone + lag + rng.expovariate(1 / (3 * US))
        ends = {"ss": sent, "se": gone, "rs": posted, "re": arrived}
        self.sends.append({"src": src, "dst": dst, "kind": kind, "m": m} | ends)
        return arrived

    def meet(self, group: str, ranks: list[int]) -> None:
        begin = {r: self.free[r] + self.rng.uniform(0, 1) * MS for r in ranks}
        end = max(begin.values()) + 5 * MS
        for r in ranks:
            self.free[r] = end + self.rng.uniform(0, 8) * US
            self.collectives.append({"rank": r, "group": group, "start": begin[r], "end": self.free[r]})


class _Watch:
    """Reads the true times on the hosts' wrong clocks, inside each rank's window."""

    def __init__(self, c: Clocks, end: float) -> None:
        self.rng = np.random.default_rng(c.seed + 1)
        self.ranks = range(c.stages * c.replicas)
        self.host = {r: f"host{r // c.ranks_per_host:02d}" for r in self.ranks}
        self.names = sorted(set(self.host.values()))
        self.offset = {h: float(self.rng.uniform(-1, 1) * c.offset_us * US) for h in self.names}
        self.rate = {h: float(self.rng.uniform(-1, 1) * c.drift_ppm * 1e-6) for h in self.names}
        cut = c.cut_ms * MS
        self.set = {h: (share * end, size * US) for h, (share, size) in c.set_us.items()}
        self.window = {r: (self.rng.uniform(-1, 1) * cut, end - self.rng.uniform(-1, 1) * cut) for r in self.ranks}

    def stamp(self, rank: int, time: float) -> int:
        host = self.host[rank]
        at, size = self.set.get(host, (0.0, 0.0))
        return START_NS + round(
            (size if time >= at else 0.0) + time + self.offset[host] + self.rate[host] * time + self.rng.normal(0, 300)
        )

    def seen(self, rank: int, start: float, end: float) -> Row | None:
        """The two stamps; None outside the rank's window."""
        first, last = self.window[rank]
        if start < first or end > last:
            return None
        return {"rank": rank, "start_ns": self.stamp(rank, start), "end_ns": self.stamp(rank, end)}


def make(c: Clocks) -> Run:
    """A run under the wrong clocks `c`: one-forward-one-backward, blocking receives."""
    pipeline = _Pipeline(c)
    pipeline.run()
    end = max(pipeline.free.values())
    watch = _Watch(c, end)
    spans = [s | at for s in pipeline.spans if (at := watch.seen(s["rank"], s["start"], s["end"]))]
    met = [{"group": s["group"], "op": "allreduce"} | at for s in pipeline.collectives
           if (at := watch.seen(s["rank"], s["start"], s["end"]))]  # fmt: skip
    p2p, paired, step_of = [], [], {}
    for s in pipeline.sends:
        sent, received = watch.seen(s["src"], s["ss"], s["se"]), watch.seen(s["dst"], s["rs"], s["re"])
        step_of.update({(side["rank"], side["end_ns"]): s["step"] for side in (sent, received) if side})
        if sent:
            p2p.append({"role": "send", "peer": s["dst"], "group": "pp", "microbatch": s["m"]} | sent)
        if received:
            p2p.append({"role": "recv", "peer": s["src"], "group": "pp", "microbatch": s["m"]} | received)
        if sent and received:
            paired.append({
                "src_rank": s["src"], "dst_rank": s["dst"], "direction": s["kind"], "microbatch": s["m"],
                "send_start_ns": sent["start_ns"], "send_end_ns": sent["end_ns"],
                "recv_start_ns": received["start_ns"], "recv_end_ns": received["end_ns"],
            })  # fmt: skip
    ranks = [{"rank": r, "host": watch.host[r], "stage": r % c.stages, "dp": r // c.stages} for r in watch.ranks]
    hosts = pl.DataFrame({"host": watch.names, "machine": range(len(watch.names)), "label": watch.names})
    profile = Profile(
        hosts=conform(hosts, HOSTS),
        ranks=_table(ranks, RANKS),
        spans=_table(spans, SPANS),
        p2p=_table(p2p, P2P).sort("rank", "start_ns"),
        collectives=_table(met, COLLECTIVES),
    )
    middle = START_NS + round(end / 2)
    return Run(profile, _table(paired, MESSAGES), watch.offset, watch.rate, middle, step_of)


def _table(rows: list[Row], schema: Schema) -> pl.DataFrame:
    return conform(pl.DataFrame(rows, infer_schema_length=None), schema)
