"""Long Nsight Systems exports of one rank, made quickly: a short one that is repeated inside the database."""

from __future__ import annotations

import random
from pathlib import Path

from samples.generators import nsys
from samples.generators.nsys_export import Export
from tests.support.databases import changing

PAUSE_NS = 1_000_000
KERNELS = 500
CALLS = 1 << 20
"""More calls than one round has, so that no correlation id comes twice."""


def write(path: Path, kernels: int, stages: int = 8, microbatches: int = 8) -> Path:
    """Rank 0 of a zero-bubble pipeline; about this many kernels, KERNELS in each block."""
    export, chance = Export(), random.Random(1)
    rank = nsys.Rank(export, 0, 0, kernels=KERNELS)
    steps = max(1, kernels // (KERNELS * 3 * microbatches))
    blocks = [b for b in nsys.blocks_of(stages, microbatches, steps, chance) if b.rank == 0]
    for block in blocks:
        rank.block(block, chance)
    rank.steps(blocks)
    return export.write(path)


def repeat(path: Path, times: int) -> int:
    """Makes the session `times` as long; its kernels then."""
    with changing(path) as db:
        (last,) = db.execute('SELECT max("end") FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
        rounds = (
            f"(WITH RECURSIVE k(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM k WHERE v < {times - 1}) SELECT v FROM k)"
        )
        for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"):
            shifts = {"start": last + PAUSE_NS, "end": last + PAUSE_NS, "correlationId": CALLS}
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
            moved = ", ".join(f'"{c}" + k.v * {shifts[c]}' if c in shifts else f'"{c}"' for c in columns)
            db.execute(f"INSERT INTO {table} SELECT {moved} FROM {table} t, {rounds} k ORDER BY k.v, t.rowid")
        db.commit()
        return int(db.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0])
