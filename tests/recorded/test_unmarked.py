"""Recorded captures without the names of their passes: what is found is what the names say, to the nanosecond."""

import gzip
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import trace_export
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions, Source

NAMES = ("PP:*", "F[0-9]*", "B[0-9]*", "W[0-9]*", "R[0-9]*", "W_clear*", "iter_*", "SEND_*", "RECV_*", "Optimizer")
"""The ranges that name a pass, a transfer or a step, as GLOB patterns."""

Kinds = dict[str, int]
EXPECTED: dict[str, tuple[Kinds, Kinds, str]] = {
    "B_1f1b": ({"F": 96, "B": 96, "OPT": 12}, {}, "1F1B"),
    "C_InterleavedZeroBubble": ({"F": 128, "B": 112, "W": 112, "OPT": 8}, {"B": 16}, "Interleaved ZB1P"),
    "A_zbh1_all": ({"F": 96, "B": 96, "W": 72, "OPT": 12}, {"W": 24}, "ZB-H1"),
}
"""Blocks that are exact; others: the whole backwards of a stage without input gradients, which the runtime calls W, and
parts of ranges that hold several weight gradients; and the schedule."""


def without_names(db: sqlite3.Connection) -> None:
    texts = " OR ".join(f"coalesce(text, '') GLOB '{name}'" for name in NAMES)
    strings = " OR ".join(f"value GLOB '{name}'" for name in NAMES)
    db.execute(f"DELETE FROM NVTX_EVENTS WHERE {texts} OR textId IN (SELECT id FROM StringIds WHERE {strings})")


def without_ranges(db: sqlite3.Connection) -> None:
    db.execute("DROP TABLE NVTX_EVENTS")


def without_threads(db: sqlite3.Connection) -> None:
    without_ranges(db)
    db.execute("DROP TABLE IF EXISTS ThreadNames")


def without_marker_kernels(db: sqlite3.Connection) -> None:
    """The program of one capture launched a kernel of its own at each end of a pass."""
    db.execute(
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE demangledName IN"
        " (SELECT id FROM StringIds WHERE lower(value) LIKE '%abs%')"
    )


def copies(recorded: Path, name: str, folder: Path, change: Callable[[sqlite3.Connection], None]) -> Path:
    """The captures of `name`, marked and changed, in two folders below `folder`."""
    for kind in ("marked", "changed"):
        (folder / kind).mkdir()
        for packed in sorted((recorded / "nsys" / name).glob("*.sqlite.gz")):
            path = folder / kind / packed.stem
            with gzip.open(packed) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
            with closing(sqlite3.connect(path)) as db:
                if name == "A_zbh1_all":
                    without_marker_kernels(db)
                if kind == "changed":
                    change(db)
                db.commit()
    return folder / "changed"


def spans(folder: Path) -> pl.DataFrame:
    paths = sorted(folder.glob("*.sqlite"))
    return pl.concat(read(Source("nsys", path, "node0"), ReadOptions()).spans for path in paths)


def blocks(frame: pl.DataFrame) -> set[tuple[object, ...]]:
    return set(frame.select("rank", "kind", "start_ns", "end_ns").rows())


@pytest.mark.parametrize("change", [without_names, without_ranges, without_threads])
@pytest.mark.parametrize("name", EXPECTED)
def test_blocks_without_names_are_those_with_names(
    recorded: Path, tmp_path: Path, name: str, change: Callable[[sqlite3.Connection], None]
) -> None:
    changed = copies(recorded, name, tmp_path, change)
    result, truth = spans(changed), blocks(spans(tmp_path / "marked"))
    exact = Counter(str(kind) for _, kind, *_ in blocks(result) & truth)
    others = Counter(str(kind) for _, kind, *_ in blocks(result) - truth)
    want, rest, _ = EXPECTED[name]
    if name.startswith("C_") and change is not without_names:  # no sequence numbers: weight gradients merge
        want, rest = want | {"W": 94}, rest | {"W": 6}
    assert (exact, others) == (Counter(want), Counter(rest))
    assert set(result["origin"]) == {"inferred"}


@pytest.mark.parametrize("name", EXPECTED)
def test_labels_stages_and_schedule_follow(recorded: Path, tmp_path: Path, name: str) -> None:
    changed = copies(recorded, name, tmp_path, without_names)
    run, marked = trace_export.load(changed), trace_export.load(tmp_path / "marked")
    key = ["rank", "start_ns", "end_ns"]
    both = run.spans.join(marked.spans, on=key, suffix="_marked").filter(pl.col("microbatch_marked").is_not_null())
    assert both.height > 0.85 * run.spans.height or name == "A_zbh1_all"
    for column in ("microbatch", "chunk"):
        wrong = both.filter(pl.col(column).fill_null(0) != pl.col(f"{column}_marked").fill_null(0))
        assert wrong.is_empty(), column
    title = EXPECTED[name][2]
    (note,) = [note.text for note in run.notes if note.code == "schedule-recognised"]
    assert f"exactly that of {title}" in note
