"""What `inspect` says of large sources from their beginnings, beside what is true of the whole."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.support import long_runs
from trace_export.inspection import inspect as inspection
from trace_export.sources.paddle import log_scanner
from trace_export.sources.shared import chrome_json, sqlite
from trace_export.workers import sizing

TIMES = 30
"""How often the short run is repeated; more than the first piece of each format holds."""


@pytest.fixture
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even such sources are looked at only, in pieces of half the size."""
    monkeypatch.setattr(inspection, "WHOLE_BYTES", 0)
    monkeypatch.setattr(chrome_json, "PIECE_BYTES", chrome_json.PIECE_BYTES // 2)
    monkeypatch.setattr(log_scanner, "READ_BYTES", log_scanner.READ_BYTES // 2)
    for module in ("ascend.database_rank", "nsys.reader", "rocpd.reader"):
        monkeypatch.setattr(f"trace_export.sources.{module}.PIECE_ROWS", sqlite.PIECE_ROWS // 2)


@pytest.mark.parametrize(
    ("make", "times", "schedule"),
    [
        (long_runs.nsys, TIMES, "zb-h1"),
        (long_runs.ascend, TIMES, "1f1b"),
        (long_runs.paddle, 2 * TIMES, "1f1b"),
        (long_runs.kineto, TIMES, "zb-h1"),
    ],
)
@pytest.mark.usefixtures("nothing_is_small")
def test_the_beginning_tells_of_the_whole(
    make: Callable[[Path, int], None], times: int, schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, times)
    result = trace_export.inspect(tmp_path, jobs=1)
    assert not result.failures
    facts = result.facts
    assert (facts["schedule"], facts["stages"], facts["microbatches"]) == (schedule, long_runs.STAGES, 6)
    truth = times * long_runs.STEPS
    assert result.ranks["beginning"].all()
    assert (result.ranks["steps"] < truth).all()
    assert ((result.ranks["about_steps"] - truth).abs() <= max(2, 0.02 * truth)).all()
    assert f"about {facts['about_steps']} steps" in result.verdict
    assert result.ranks["blocks"].n_unique() == 1, "of all ranks the same steps"
    assert not [note for note in result.notes if note.level == "warning"]

    monkeypatch.setattr(sizing, "cores", lambda: 2)
    on_threads = trace_export.inspect(tmp_path)
    assert (on_threads.ranks.equals(result.ranks), on_threads.facts) == (True, facts)

    whole = trace_export.inspect(tmp_path, jobs=1, full=True)
    assert whole.ranks["steps"].to_list() == [truth] * long_runs.STAGES
    assert not whole.ranks["beginning"].any()
    assert whole.ranks["about_steps"].null_count() == long_runs.STAGES
    assert "about" not in whole.verdict
    assert whole.ranks.select("rank", "stage", "host", "microbatches").equals(
        result.ranks.select("rank", "stage", "host", "microbatches")
    )


@pytest.mark.usefixtures("nothing_is_small")
def test_the_beginning_of_a_rocpd_database(tmp_path: Path) -> None:
    long_runs.rocpd(tmp_path, TIMES)
    result = trace_export.inspect(tmp_path, jobs=1)
    assert (result.facts["schedule"], result.facts["microbatches"], result.ranks["beginning"].all()) == (
        "zb-h1",
        6,
        True,
    )
    assert abs(result.facts["about_steps"] - TIMES * long_runs.STEPS) <= 2


@pytest.mark.usefixtures("nothing_is_small")
def test_small_sources_are_counted_exactly(tmp_path: Path) -> None:
    long_runs.nsys(tmp_path, 2)
    result, whole = (trace_export.inspect(tmp_path, jobs=1, full=full) for full in (False, True))
    assert result.verdict == whole.verdict
    assert result.ranks.equals(whole.ranks)


@pytest.mark.usefixtures("nothing_is_small")
def test_rows_that_are_not_in_the_order_of_time_are_all_read(tmp_path: Path) -> None:
    """The first rows of such a table are not the beginning of the recording, perhaps those of one process."""
    long_runs.nsys(tmp_path, TIMES)
    for path in tmp_path.iterdir():
        with closing(sqlite3.connect(path)) as db:
            for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"):
                db.execute(f"CREATE TEMP TABLE turned AS SELECT * FROM {table} ORDER BY start DESC")
                db.execute(f"DELETE FROM {table}")
                db.execute(f"INSERT INTO {table} SELECT * FROM turned ORDER BY rowid")
                db.execute("DROP TABLE turned")
            db.commit()
    result = trace_export.inspect(tmp_path, jobs=1)
    assert result.facts["steps"] == TIMES * long_runs.STEPS
    assert not result.ranks["beginning"].any()


@pytest.mark.usefixtures("nothing_is_small")
def test_more_is_read_where_the_beginning_shows_too_little(tmp_path: Path) -> None:
    """A step of more operators than the first piece holds."""
    long_runs.kineto(tmp_path, 20, operators=75)
    result = trace_export.inspect(tmp_path, jobs=1)
    assert result.facts["schedule"] == "zb-h1"
    assert (result.ranks["steps"] >= 2).all()
    assert (result.facts["about_steps"] - 40) ** 2 <= 4


@pytest.mark.usefixtures("nothing_is_small")
def test_a_trace_without_gpu_work_is_refused_from_its_beginning(tmp_path: Path) -> None:
    long_runs.kineto(tmp_path, TIMES)
    for path in tmp_path.iterdir():
        head, _, tail = path.read_text().partition('\n  },\n  {\n    "ph": "X", "cat": "cuda_runtime"')
        path.write_text(head + '\n  }\n  ],"traceName": "x" }')
        assert tail
    result = trace_export.inspect(tmp_path, jobs=1)
    assert result.verdict == "cannot be drawn: no source has a pipeline block"
    assert all("no GPU work in the file" in str(error) for error in result.failures)


@pytest.mark.usefixtures("nothing_is_small")
def test_passes_after_a_long_start_are_not_denied(tmp_path: Path) -> None:
    """The error says that only the beginning was read; with all of it there are passes."""
    long_runs.kineto(tmp_path, 10)
    for rank in (1, 2, 3):
        (tmp_path / f"rank{rank}.pt.trace.json").unlink()
    path = tmp_path / "rank0.pt.trace.json"
    head, opening, events = path.read_text().partition('"traceEvents": [\n')
    operator = (events.partition("\n  },\n  {")[0] + "\n  },\n  ").replace("te:", "aten::")
    path.write_text(head + opening + operator * 70_000 + "  " + events.lstrip())
    result = trace_export.inspect(tmp_path, jobs=1)
    assert not result.ranks.height
    assert all("beginning" in str(error) and "`full" in str(error) for error in result.failures)
    assert trace_export.inspect(tmp_path, jobs=1, full=True).ranks["steps"].to_list() == [20]


def test_the_command_says_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trace_export.cli import inspect

    long_runs.paddle(tmp_path, 120)
    monkeypatch.setattr(inspection, "WHOLE_BYTES", 0)
    result = trace_export.inspect(tmp_path, jobs=1)
    inspect.show(result)
    said = " ".join(capsys.readouterr().out.split())
    assert "only the beginning of 4 large sources" in said
    assert "--full reads all 2 MB" in said
    assert isinstance(result.ranks, pl.DataFrame)
