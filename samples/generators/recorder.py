"""Write the files of the recorder of a made-up zero-bubble (ZB-H1) run, with the truth beside them.

    python -m samples.generators.recorder        # writes samples/recorder/two_hosts again

Each host's clock may be off, and the times of each process count from a moment of its own.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from samples.generators.pipeline import MS, US, Block, Timing, simulate, zb_h1

TIMING = Timing(
    lengths={"F": 9 * MS, "B": 9_500 * US, "W": 8 * MS, "OPT": 21 * MS},
    hop=600 * US,
    gap=4 * MS,
    first=1_760_000_000_000_000_000,
    start_jitter=range(20, 120),
    length_jitter=range(-400, 400),
    optimizer_jitter=range(50, 250),
)
CLOCK_NS = 5 * 10**12


def line(block: Block, start: int, origin: str = "d") -> str:
    """A block that starts at `start` of the recorder's clock."""
    numbers = (block.step, block.microbatch, block.chunk, block.microbatch_b, block.chunk_b)
    written = ",".join("" if number is None else str(number) for number in numbers)
    return f"{block.kind},{written},{start},{block.end_ns - block.start_ns},{origin}\n"


def header(**facts: object) -> str:
    return "#" + json.dumps({"trace_export_blocks": 1, **facts}, separators=(",", ":")) + "\n"


def file(blocks: Iterable[Block], rank: int, *, host: str, error_ns: int = 0, began: int, **facts: object) -> str:
    """What a rank has recorded: the clock of `host` is off by `error_ns`, that of the recorder was CLOCK_NS at
    `began`."""
    own = {"host": host, "boot": f"boot-{host}", "pid": 4000 + rank, "unix_ns": began + error_ns, "clock_ns": CLOCK_NS}
    lines = (line(block, block.start_ns - began + CLOCK_NS) for block in blocks if block.rank == rank)
    return "".join([header(**own, rank=rank, **facts), *lines])


def write(
    folder: Path,
    *,
    stages: int = 4,
    microbatches: int = 8,
    steps: int = 3,
    hosts: int = 2,
    clock_errors_ns: Sequence[int] = (0, 2_400_000),
    seed: int = 1,
) -> list[Block]:
    """A file for each rank. Returns the blocks on the true clock."""
    orders = [zb_h1(stage, stages, microbatches) for stage in range(stages)]
    blocks = simulate(orders, TIMING, range(5, 5 + steps), random.Random(seed)).blocks
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(stages):
        host = rank * hosts // stages
        facts = {"world": stages, "stage": rank, "device": rank % (stages // hosts), "pp_size": stages}
        began = TIMING.first - (1 + rank) * 10**9
        text = file(blocks, rank, host=f"node{host}", error_ns=clock_errors_ns[host], began=began, **facts)
        (folder / f"rank{rank}.blocks").write_text(text)
    return blocks


def write_truth(folder: Path, blocks: Sequence[Block]) -> None:
    """The blocks on the true clock, in `truth.csv`."""
    with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["rank", "step", "kind", "microbatch", "true_start_us", "true_end_us"])
        writer.writerows([b.rank, b.step, b.kind, b.microbatch, b.start_ns // US, b.end_ns // US] for b in blocks)


if __name__ == "__main__":
    here = Path(__file__).parent.parent / "recorder" / "two_hosts"
    write_truth(here, write(here, microbatches=6, steps=2))
