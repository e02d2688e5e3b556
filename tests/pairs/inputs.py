"""Profiles of simulated jobs whose traits are drawn, with the blocks that they must give."""

from __future__ import annotations

import gzip
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from samples.generators.data_parallel import WRITERS, Job, Run, simulate
from samples.generators.pipeline import MS, US
from tests.pairs.covering import Row

TRAITS: dict[str, tuple[object, ...]] = {
    "form": ("nsys", "kineto", "ascend", "paddle", "table"),
    "schedule": ("1f1b", "zb-h1", "gpipe", "interleaved", "vee"),
    "receives": ("early", "at once", "late", "random"),
    "replicas": (1, 2),
    "tensor": (1, 2),
    "hosts": (1, 2),
    "stages_first": (False, True),
    "jitter": (0.0, 0.02),
    "microbatches": (4, 6),
    "overlap": (0, 300 * US),
    "packed": (False, True),
}
"""What inputs differ in. `packed`: each file of the profile compressed, where its format may be."""
FORMS = {"vee": ("table",), "interleaved": ("nsys", "kineto", "paddle", "table"), "zb-h1": ("nsys", "kineto", "table")}
"""The forms whose writers have blocks of a schedule; the others have all."""


def can_be(row: Row) -> bool:
    """Whether there is such an input: a writer that has it, and a format that can be compressed."""
    form = row["form"]
    one_stream = form == "ascend" and (row["tensor"] > 1 or row["overlap"] > 0)
    written = form in FORMS.get(row["schedule"], (form,)) and not one_stream
    return written and not (row["packed"] and form != "kineto")


@dataclass(frozen=True)
class Input:
    """A job, in the form of a reader, and how it is laid out."""

    form: str
    job: Job
    packed: bool

    @staticmethod
    def of(row: Row) -> Input:
        traits = {name: row[name] for name in TRAITS if name not in ("form", "packed")}
        return Input(row["form"], Job(stages=2, steps=3, hop=300 * US, gap=4 * MS, **traits), row["packed"])

    @cached_property
    def run(self) -> Run:
        return simulate(self.job)

    def write(self, folder: Path) -> None:
        folder.mkdir()
        WRITERS[self.form](folder, self.job)
        for path in list(folder.rglob("*.json")) if self.packed else ():
            with path.open("rb") as plain, gzip.open(f"{path}.gz", "wb", compresslevel=1) as packed:
                shutil.copyfileobj(plain, packed)
            path.unlink()

    @property
    def host(self) -> str:
        """What the first host is called."""
        return "machine0" if self.form == "paddle" else "node0"

    @property
    def options(self) -> list[str]:
        """What a user of such a job has to give."""
        if self.form == "table":  # which says where each rank is
            return []
        sizes = {"--pp": self.job.stages, "--tp": self.job.tensor, "--dp": self.job.replicas}
        return [str(word) for option in sizes.items() for word in option]

    @property
    def error_ns(self) -> int:
        """How far recorded times are from the true ones: worker logs have them as decimal milliseconds."""
        return 1_200 if self.form == "paddle" else 0

    @cached_property
    def truth(self) -> pl.DataFrame:
        """A row for each block: rank, stage, replica, step, kind, microbatch, chunk, whether its host is the
        first, start_ns, end_ns since the first block; in order of rank and start."""
        zero = min(block.start_ns for block in self.run.blocks)
        rows = [
            {
                "rank": b.rank, "stage": self.job.place(b.rank)[1], "replica": self.job.place(b.rank)[0],
                "step": b.step + (self.form == "paddle"), "kind": b.kind, "microbatch": b.microbatch, "chunk": b.chunk,
                "first_host": self.job.host(b.rank) == 0,
                "start_ns": b.start_ns - zero, "end_ns": b.end_ns - zero,
            }
            for b in self.run.blocks
        ]  # fmt: skip
        return pl.DataFrame(rows).sort("rank", "start_ns")
