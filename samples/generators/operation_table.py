"""Operation tables as the straggler study's artifact writes them: every operation of a 1F1B run, and when it ran.

What waits for what is written here anew, for 1F1B with one chunk; nothing of the program under test is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import polars as pl

from samples.generators.pipeline import one_f_one_b

F, B = "forward-compute", "backward-compute"
SENDS, RECEIVES = {"F": "forward-send", "B": "backward-send"}, {"F": "forward-recv", "B": "backward-recv"}
AG, RS = "params-all-gather", "grads-reduce-scatter"
LN, EMB, CLIP = "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer-clip-main-grad"
LENGTHS = {F: 10, B: 20, AG: 5, RS: 6, LN: 1, EMB: 2, CLIP: 1, "optimizer": 3, "gc": 0}
TRANSFER = 1


class Cell(NamedTuple):
    """An operation in one replica and step."""

    optype: str
    seq: int
    stage: int
    dp: int
    step: int


Length = Callable[[Cell], float]


def usual(cell: Cell) -> float:
    """Milliseconds that an operation takes, a transfer and a collective from the last start of their partners."""
    return LENGTHS.get(cell.optype, TRANSFER)


def at_once(cell: Cell) -> float:
    """No launch delay."""
    return 0


@dataclass(frozen=True)
class Job:
    """A run of `stages` × `replicas` ranks; `length` and `launch` in milliseconds."""

    stages: int = 4
    microbatches: int = 8
    replicas: int = 2
    steps: tuple[int, ...] = (0, 1, 2)
    length: Length = usual
    launch: Length = at_once

    def table(self) -> pl.DataFrame:
        """The operations, in the columns and types of the artifact."""
        rows = [self._row(cell, *times) for cell, times in self._times().items()]
        return pl.DataFrame(rows, orient="row", schema={
            "dp_rank": pl.Int8, "stage": pl.Int8, "rank": pl.Int16, "step": pl.Int64, "optype": pl.String,
            "start_ts": pl.Float32, "duration": pl.Float32, "seq_id": pl.Int32, "mc": pl.Int8, "mb_id": pl.Int8,
            "gmc": pl.Int16,
        }).cast({"optype": pl.Categorical})  # fmt: skip

    def write(self, folder: Path, name: str = "made") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"trace-{name}.parquet"
        packed = BytesIO()
        self.table().write_parquet(packed)
        path.write_bytes(packed.getvalue())
        self.describe(folder, name)
        return path

    def describe(self, folder: Path, name: str = "made") -> None:
        """The description that lies beside the table."""
        sizes = {"dp_size": self.replicas, "dsp_size": 1, "pp_size": self.stages, "tp_size": 1, "vpp_size": 1}
        (folder / f"meta-{name}.yaml").write_text("".join(f"{k}: {v}\n" for k, v in sizes.items()))

    def _row(self, cell: Cell, start: float, end: float) -> tuple[object, ...]:
        compute = cell.optype in (F, B)
        mc = 0 if compute or cell.optype in (AG, RS) else -1
        rank = cell.stage * self.replicas + cell.dp
        times = (start / 1000, (end - start) / 1000)
        return (
            cell.dp, cell.stage, rank, cell.step, cell.optype, *times, cell.seq, mc, cell.seq if compute else -1,
            cell.stage if compute else -1,
        )  # fmt: skip

    def _times(self) -> dict[Cell, tuple[float, float]]:
        """Start and end of every operation, from the definition: what it waits for, and with whom it ends."""
        cells = [Cell(*op, dp, step) for step in self.steps for dp in range(self.replicas) for op in self._operations()]
        waits = self._waits()

        @cache
        def start(cell: Cell) -> float:
            before = waits[cell[:3]]
            return max((end(Cell(*op, cell.dp, cell.step)) for op in before), default=0) + self.launch(cell)

        @cache
        def end(cell: Cell) -> float:
            return max(start(partner) for partner in self._partners(cell)) + self.length(cell)

        return {cell: (start(cell), end(cell)) for cell in cells}

    def _operations(self) -> list[tuple[str, int, int]]:
        found = []
        for s in range(self.stages):
            names = [F, B]
            names += [SENDS["F"], RECEIVES["B"]] if s < self.stages - 1 else []
            names += [SENDS["B"], RECEIVES["F"]] if s else []
            found += [(name, m, s) for name in names for m in range(self.microbatches)]
            ends = [EMB] if s in (0, self.stages - 1) else []
            found += [(name, 0, s) for name in (AG, "gc", LN, *ends, RS, CLIP, "optimizer")]
        return found

    def _partners(self, cell: Cell) -> list[Cell]:
        """The operations that end together with this one, itself among them."""
        name, _, stage, _, _ = cell
        for kind, onward in (("F", 1), ("B", -1)):
            if name == SENDS[kind]:
                return [cell, cell._replace(optype=RECEIVES[kind], stage=stage + onward)]
            if name == RECEIVES[kind]:
                return [cell, cell._replace(optype=SENDS[kind], stage=stage - onward)]
        stages = {EMB: (0, self.stages - 1), CLIP: range(self.stages)}.get(name, (stage,))
        replicas = range(self.replicas) if name in (AG, RS, CLIP) else (cell.dp,)
        return [cell._replace(stage=s, dp=a) for s in stages for a in replicas]

    def _waits(self) -> dict[tuple[str, int, int], list[tuple[str, int, int]]]:
        waits: dict[tuple[str, int, int], list[tuple[str, int, int]]] = {op: [] for op in self._operations()}
        for s in range(self.stages):
            names = {"F": F, "B": B}
            order = [(names[op.kind], op.microbatch, s) for op in one_f_one_b(s, self.stages, self.microbatches)]
            streams = [order, [(AG, 0, s), (RS, 0, s)]]
            for kind, block in names.items():
                for name in (SENDS[kind], RECEIVES[kind]):
                    stream = [(name, m, s) for m in range(self.microbatches) if (name, m, s) in waits]
                    streams.append(stream)
                    for op in stream:
                        m = op[1]
                        if name == SENDS[kind]:
                            waits[op].append((block, m, s))
                        else:
                            waits[block, m, s].append(op)
                            waits[op] += [(block, m - 1, s)] if m else []
            first = next(n for n, op in enumerate(order) if op[0] == B)
            for name in (RECEIVES["B"], SENDS["B"]):
                if first >= 2 and (name, 0, s) in waits:
                    waits[name, 0, s].append(order[first - 2])
            waits[F, 0, s].append((AG, 0, s))
            ends = [(EMB, 0, s)] if (EMB, 0, s) in waits else []
            streams.append([order[-1], ("gc", 0, s), (LN, 0, s), *ends, (RS, 0, s), (CLIP, 0, s), ("optimizer", 0, s)])
            for stream in streams:
                for before, after in pairwise(stream):
                    waits[after].append(before)
        return waits
