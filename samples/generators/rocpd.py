"""Write rocpd databases of a made-up zero-bubble (ZB-H1) run, with the truth beside them.

    python -m samples.generators.rocpd            # writes samples/rocpd/two_hosts again

Two hosts with two processes each, a database for each as rocprofv3 writes it. The clock of a host counts from its boot,
which lies days apart; nothing in the databases tells when that was. Blocks and transfers are those of the Nsight
sample.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

from samples.generators import nsys
from samples.generators.block_kernels import Cut
from samples.generators.pipeline import Block, Simulation, Timing, WrongTimes
from samples.generators.rocpd_export import Export

DAY_NS = 86_400 * 10**9
BOOTED_NS = (3 * DAY_NS, 10 * DAY_NS)
"""How long before the run each host was booted."""


def record(folder: Path, blocks: list[Block], booted_ns: tuple[int, ...], chance: random.Random,
           dialect: nsys.Dialect | None = None, schema: int = 3,
           *, wrong: WrongTimes | None = None
           ) -> list[tuple[int, str, str, int, int]]:  # fmt: skip
    """A database for each rank in the folder of its host. Returns all transfers' sides as `nsys.record` does."""
    ranks = _ranks(1 + max(b.rank for b in blocks), booted_ns, dialect, schema, wrong)
    sides = nsys.fill(ranks, blocks, chance)
    _save(ranks, folder)
    return sides


def write_planted(folder: Path, timing: Timing) -> list[Block]:
    """A database for each rank of the run that `nsys.planted` simulates. Returns the truth."""
    chance = random.Random(1)
    run = nsys.planted(timing, chance)
    ranks = _ranks(1 + max(b.rank for b in run.blocks), (0, 0, 0, 0))
    nsys.fill_met(ranks, run, chance)
    _save(ranks, folder)
    return run.blocks


def write_run(folder: Path, run: Simulation, stages: int, cut: Cut | None = None) -> None:
    """A database for each rank of a run in which the ranks are the stages, all on one host."""
    ranks = _ranks(stages, (0,), cut=cut)
    nsys.fill_met(ranks, run, random.Random(1))
    _save(ranks, folder)


def _ranks(
    stages: int,
    booted_ns: tuple[int, ...],
    dialect: nsys.Dialect | None = None,
    schema: int = 3,
    wrong: WrongTimes | None = None,
    cut: Cut | None = None,
) -> list[nsys.Rank]:
    per_host = stages // len(booted_ns)
    ranks = []
    for rank in range(stages):
        host, local = divmod(rank, per_host)
        export = Export(host=f"node{host}", pid=4_000 + 11 * rank, schema=schema, gpu=local,
                        environment={"RANK": str(rank), "WORLD_SIZE": str(stages)})  # fmt: skip
        ranks.append(nsys.Rank(export, rank, booted_ns[host], dialect=dialect, wrong=wrong, cut=cut))
    return ranks


def _save(ranks: list[nsys.Rank], folder: Path) -> None:
    for rank in ranks:
        (place := folder / rank.export.host).mkdir(parents=True, exist_ok=True)
        rank.export.write(place / f"{rank.process}_results.db")


def write(folder: Path, *, stages: int = 4, microbatches: int = 6, steps: int = 2,
          booted_ns: tuple[int, ...] = BOOTED_NS, seed: int = 1,
          schema: int = 3) -> list[Block]:  # fmt: skip
    """A ZB-H1 run in `folder`, and truth.csv, whose times count from the start of the run. Returns the truth."""
    chance, dialect = random.Random(seed), nsys.Dialect()
    blocks = nsys.blocks_of(stages, microbatches, steps, chance)
    record(folder, blocks, booted_ns, chance, dialect, schema)
    with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "step", "kind", "microbatch", "marker", "true_start_ns", "true_end_ns"])
        for b in blocks:
            microbatch = "" if b.kind == "OPT" else b.microbatch
            table.writerow([b.rank, b.step, b.kind, microbatch, dialect.block(b, b.rank), b.start_ns, b.end_ns])
    return blocks


if __name__ == "__main__":
    write(Path(__file__).parent.parent / "rocpd" / "two_hosts")
