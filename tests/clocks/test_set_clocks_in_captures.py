"""Clocks that were set in written captures: the bound holds, or none is stated, as in tests/clocks/test_clock_steps."""

import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from samples.generators import ascend, data_parallel, nsys, paddle, rocpd
from samples.generators.nsys_export import Export
from samples.generators.pipeline import MS, Block
from tests.support.rows import crossed
from trace_export import load
from trace_export.run import Run

STAGES, MICROBATCHES, STEPS = 4, 6, 4
COLUMNS = ("start", "end", "startNs", "endNs")


class Plain(nsys.Dialect):
    split = False


def _database(path: Path, at_ns: int, by_ns: int) -> None:
    """Moves all times of a capture from `at_ns` on."""
    with closing(sqlite3.connect(path)) as db, db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {name for _, name, *_ in db.execute(f'PRAGMA table_info("{table}")')}
            for column in columns & set(COLUMNS) if "SESSION" not in table else ():
                db.execute(f'UPDATE "{table}" SET "{column}" = "{column}" + ? WHERE "{column}" >= ?', (by_ns, at_ns))


def _log(path: Path, at_ns: int, by_ns: int) -> None:
    def moved(result: re.Match[str]) -> str:
        time_ms = float(result[2])
        return f"{result[1]}{time_ms + by_ns / MS * (time_ms * MS >= at_ns):.6f}"

    path.write_text(re.sub(r"(job_(?:start|end)_time = )(\d+\.\d+)", moved, path.read_text()))


def _nsys(folder: Path, seed: int) -> tuple[list[Block], int]:
    blocks = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(seed), split=False)
    nsys.record(folder, blocks, 2, (0, 0), random.Random(seed), Plain())
    return blocks, Export.epoch_ns


def _rocpd(folder: Path, seed: int) -> tuple[list[Block], int]:
    blocks = nsys.blocks_of(STAGES, MICROBATCHES, STEPS, random.Random(seed), split=False)
    rocpd.record(folder, blocks, (0, 0), random.Random(seed), Plain())
    return blocks, 0


def _ascend(folder: Path, seed: int) -> tuple[list[Block], int]:
    return ascend.record(folder, ascend.Job(STAGES, MICROBATCHES, STEPS, hosts=2, seed=seed)).blocks, 0


def _paddle(folder: Path, seed: int) -> tuple[list[Block], int]:
    job = paddle.Job(STAGES, MICROBATCHES, range(2, 2 + STEPS), machines=2, clock_errors_us=(0, 0), seed=seed)
    return paddle.write_logs(folder, job), 0


Moves = Callable[[Path, int, int], None]
FORMATS: dict[str, tuple[Callable[[Path, int], tuple[list[Block], int]], str, Moves]] = {
    "nsys": (_nsys, "node{}*.sqlite", _database), "rocpd": (_rocpd, "node{}*/**/*.db", _database),
    "ascend": (_ascend, "node{}*/**/*.db", _database), "paddle": (_paddle, "machine{}/workerlog.*", _log),
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "host", "by_us", "share"),
    [
        ("ascend", 1, -20_000, 0.22),  # the times of the other host have a long gap there
        ("nsys", 0, -1_000, 0.6),  # a block lasts across it, and nothing tells which of both clocks was set
        ("ascend", 0, -1_000, 0.33),  # a message is sent before and arrives after it
        *crossed(FORMATS, [0, 1], [300, -300, 5_000, 20_000, 100_000], [0.3, 0.5]),
    ],
)
def test_the_bound_holds_on_both_sides(form: str, host: int, by_us: int, share: float, tmp_path: Path) -> None:
    write, files, move = FORMATS[form]
    blocks, ahead_ns = write(tmp_path, 2)
    first, last = min(b.start_ns for b in blocks), max(b.end_ns for b in blocks)
    at_ns = first + round(share * (last - first))
    for path in sorted(tmp_path.glob(files.format(host))):
        move(path, at_ns + (ahead_ns if form != "nsys" else 0), by_us * 1000)
    run = load(tmp_path).align()
    rows = [
        (b.rank, b.step, b.kind, b.microbatch, end, time + ahead_ns, time > at_ns)
        for b in blocks if b.kind in "FB" for end, time in (("start_ns", b.start_ns), ("end_ns", b.end_ns))
    ]  # fmt: skip
    key = ["rank", "step", "kind", "microbatch", "end"]
    true = pl.DataFrame(rows, [*key, "true", "side"], orient="row").with_columns(
        pl.col(key[0], key[1], key[3]).cast(pl.Int32)
    )
    spans = run.spans.filter(pl.col("kind").is_in(["F", "B"])).with_columns(pl.col("kind").cast(pl.String))
    result = spans.unpivot(["start_ns", "end_ns"], index=key[:4], variable_name="end", value_name="found")
    both = true.join(result, on=key).with_columns(error=pl.col("found") - pl.col("true"))
    left_out = sum(note.count for note in run.notes if note.text.startswith("passes marked at wrong times"))
    unnumbered = spans["microbatch"].null_count()  # of a step that lacks a block
    assert both.height + 2 * (left_out + unnumbered) == true.height
    assert left_out <= 1
    assert unnumbered <= (2 * MICROBATCHES if left_out else 0)
    either = any("or that of" in note.text for note in run.notes if note.code == "clock-set")
    hosts = run.ranks.select("rank", "host").join(run.clocks.select("host", "bound_ns"), on="host")
    both = both.join(hosts, on="rank").with_columns(side=pl.col("side") & either)
    middle = (
        both.group_by("side", "host").agg(pl.col("error").median()).group_by("side").agg(common=pl.col("error").mean())
    )
    far = both.join(middle, on="side").filter((pl.col("error") - pl.col("common")).abs() > pl.col("bound_ns"))
    assert far.height == 0


@pytest.mark.parametrize("by_us", [0, 700, 1_000])
def test_what_only_the_order_of_blocks_aligns_may_hide_a_clock_that_was_set(by_us: int, tmp_path: Path) -> None:
    """The report says so, and by how much at most."""
    blocks, ahead_ns = _paddle(tmp_path, 2)
    first, last = min(b.start_ns for b in blocks), max(b.end_ns for b in blocks)
    for path in sorted(tmp_path.glob("machine0/workerlog.*")):
        _log(path, first + (last - first) // 2 + ahead_ns, by_us * 1000)
    run = load(tmp_path).align()
    assert not [note for note in run.notes if note.code == "clock-set"]
    (sure,) = [sentence.text for sentence in run.report().verdict if sentence.code == "certainty"]
    (most_ms,) = re.findall(r"agree to about [^,;]*, unless one was set in between by less than ([\d.]+) ms", sure)
    assert float(most_ms) * 1000 > by_us


def _with_a_late_stage(folder: Path, stage: int) -> Run:
    """Two hosts with equal clocks; each block of a stage starts 2 ms late."""
    job = data_parallel.Job(replicas=1, hosts=2, held={(0, stage): 2 * MS}, jitter=0.01)
    data_parallel.WRITERS["paddle"](folder, job)
    return load(folder, multi_machine=True).align()


@pytest.mark.parametrize("stage", [1, 2])
def test_a_late_stage_at_the_edge_of_a_host_looks_like_a_clock(stage: int, tmp_path: Path) -> None:
    """Only blocks were recorded: the report says by how much it may be wrong."""
    run = _with_a_late_stage(tmp_path, stage)
    wrong_ns = int(run.profile.clocks["offset_ns"].abs().max())  # type: ignore[arg-type]
    (sure,) = [sentence for sentence in run.report().verdict if sentence.code == "certainty"]
    assert sure.facts["clock_sd_ns"] < wrong_ns <= sure.facts["clock_bound_ns"]
    assert " if data take equally long both ways (else two may be " in sure.text


def test_no_rank_is_as_late_as_its_host_if_data_would_go_back_in_time(tmp_path: Path) -> None:
    """The last stage is late after its own blocks; the other one of its host has none, and need not be late."""
    run = _with_a_late_stage(tmp_path, 3)
    assert run.profile.clocks["offset_ns"].abs().max() == 0
