"""`Run`: what is read, aligned, selected and written, in whichever order it is asked for."""

from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.conftest import Cli
from trace_export import NothingToExportError, UsageError, Window, api

WINDOW = "0ms-30ms"


@pytest.fixture(scope="module")
def logs(samples: Path) -> Path:
    return samples / "paddle" / "two_machines"


@pytest.fixture(scope="module")
def read(logs: Path) -> trace_export.Run:
    """The run of `logs`, read once: a run is never changed."""
    return trace_export.load(logs)


def offset_ms(run: trace_export.Run) -> float:
    """How far the second machine's clock was corrected against that of the first."""
    offsets = run.clocks.sort("host")["offset_ns"]
    return float(offsets[1] - offsets[0]) / 1e6


def true_offset_ms(logs: Path, run: trace_export.Run) -> float:
    """How far the second machine's clock was ahead when it recorded the blocks, by the truth of the sample."""
    truth = pl.read_csv(logs / "truth.csv").filter(pl.col("kind") == "F")
    recorded = run.spans.filter(pl.col("kind") == "F")
    both = recorded.join(truth, on=["rank", "step", "kind", "microbatch"])
    assert both.height == truth.height
    ahead = both.group_by("rank").agg((pl.col("start_ns") / 1e6 - pl.col("true_start_us") / 1e3).median()).sort("rank")
    return float(ahead["start_ns"][2] - ahead["start_ns"][0])


def test_clocks_are_aligned_by_the_whole_run_whatever_is_selected(
    logs: Path, read: trace_export.Run, run_cli: Cli, tmp_path: Path
) -> None:
    """Fitted on the 30 ms alone, the offset would be 3.907 ms."""
    assert true_offset_ms(logs, read) == pytest.approx(3.2, abs=0.01)
    run_cli(logs, "--time", WINDOW, "--out", tmp_path, "--format", "csv")
    blocks = pl.read_csv(tmp_path / "pipeline_profile.csv").height
    assert blocks == 10
    for run in (
        trace_export.load(logs, window=Window(0, 30_000_000)).align(),
        read.select(window=WINDOW).align(),
        read.align().select(window=WINDOW),
        trace_export.load(logs, steps=3).align().select(window=WINDOW),
    ):
        assert offset_ms(run) == pytest.approx(3.2, abs=0.01)
        assert run.spans.height == blocks
    assert offset_ms(read.select(steps=3).align()) == offset_ms(read.align())


@pytest.mark.parametrize("steps", ["2-3", [2, 3], (3, 2), range(2, 4), {2, 3}, "3,2"])
def test_a_set_of_numbers_can_be_given_in_many_forms(read: trace_export.Run, steps: object) -> None:
    run = read.select(steps=steps)  # type: ignore[arg-type]
    assert run.spans["step"].unique().sort().to_list() == [2, 3]


def test_a_range_of_numbers_may_begin_at_0(read: trace_export.Run) -> None:
    assert read.select(stages=range(2)).spans["rank"].unique().sort().to_list() == [0, 1]


def test_a_selection_is_of_the_whole_run(logs: Path) -> None:
    run = trace_export.load(logs, steps=2)
    assert run.spans["step"].unique().to_list() == [2]
    assert run.select(steps="3").spans["step"].unique().to_list() == [3]
    assert run.select(stages=1).ranks["rank"].to_list() == [1]
    assert run.select().spans.height == 204
    assert run.spans["step"].unique().to_list() == [2]


def test_what_no_block_is_left_of(logs: Path) -> None:
    run = trace_export.load(logs, steps=99)
    with pytest.raises(NothingToExportError, match="the run has steps 2-4, stages 0-3"):
        _ = run.spans
    with pytest.raises(NothingToExportError):
        run.align().write(logs / "never.svg")


def test_a_run_is_aligned_once(read: trace_export.Run) -> None:
    run = read
    aligned = run.align()
    with pytest.raises(UsageError, match="aligned already"):
        aligned.align("wall")
    assert run.align("wall").clocks["offset_ns"].to_list() == [0, 0]


def test_a_span_table_is_on_one_clock(read: trace_export.Run, tmp_path: Path) -> None:
    run = read.align()
    table, *_ = run.write(tmp_path, ["parquet"])
    again = trace_export.load(table).align()
    with pytest.raises(UsageError, match="offsets_ns: this run has one clock only"):
        trace_export.load(table).align(offsets_ns={"machine0": 5})
    assert again.spans.drop("id", "run", "labels", "phase").equals(
        run.spans.sort("start_ns", "rank").drop("id", "run", "labels", "phase")
    )


def test_a_file_of_clocks_can_be_applied(read: trace_export.Run, tmp_path: Path) -> None:
    run = read.align()
    _, alignment = run.write(tmp_path, "csv")
    assert read.align(alignment).spans.equals(run.spans)
    assert read.align(str(alignment)).spans.equals(run.spans)


def test_offsets_come_first(read: trace_export.Run) -> None:
    run = read.align("none", offsets_ns={"machine1": -3_200_000})
    assert offset_ms(run) == pytest.approx(3.2)


def test_device_tasks_are_drawn_as_by_the_command(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    run_cli(samples / "ascend", "--detail", "kernels", "--out", tmp_path / "cli", "--format", "chrome")
    run = trace_export.load(samples / "ascend", detail="kernels").align()
    run.write(tmp_path / "api", "chrome")
    names = ["pipeline_profile.json", "clock_alignment.json"]
    for name in names:
        assert (tmp_path / "api" / name).read_bytes() == (tmp_path / "cli" / name).read_bytes()


def test_two_runs_in_one_chart(samples: Path, tmp_path: Path) -> None:
    one, other = (trace_export.load(samples / "paddle" / name).align() for name in ("single", "two_machines"))
    (chart,) = one.write(tmp_path / "both.json", beside=other)
    assert "stage 3 · rank 3 (two_machines)".encode() in chart.read_bytes()
    assert set(one.compare(other).blocks["kind"]) == {"F", "B", "OPT"}


@pytest.mark.parametrize("name", ["csv", "parquet"])
def test_a_table_of_two_runs_has_both_as_each_alone(name: str, samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    places = {"A": samples / "paddle" / "single", "B": samples / "paddle" / "two_machines"}
    read = {"csv": pl.read_csv, "parquet": pl.read_parquet}[name]
    alone = {}
    for side, place in places.items():
        run_cli(place, "--format", name, "--out", tmp_path / f"{side}.{name}")
        alone[side] = read(tmp_path / f"{side}.{name}")
    result = run_cli("compare", *places.values(), "--out", tmp_path / f"both.{name}")
    assert result.returncode == 0, result.stderr
    both = read(tmp_path / f"both.{name}")
    for side, table in alone.items():
        assert both.filter(pl.col("side") == side).drop("side").rows() == table.rows()
    assert len(both) == sum(map(len, alone.values()))
    again = run_cli("report", tmp_path / f"both.{name}")
    assert again.returncode == 1
    assert f"both.{name} holds the blocks of two runs (column side); keep the rows of one of them" in again.stderr


def test_further_tables_of_two_runs_have_both(samples: Path, tmp_path: Path) -> None:
    one, other = (trace_export.load(samples / name).align() for name in ("nsys", "kineto"))
    one.write(tmp_path / "both.parquet", beside=other, tables=["messages", "ranks"])
    messages = pl.read_parquet(tmp_path / "both.messages.parquet")
    assert messages.filter(pl.col("side") == "A").drop("side").rows() == one.messages.rows()
    assert messages.filter(pl.col("side") == "B").drop("side").rows() == other.messages.rows()
    assert pl.read_parquet(tmp_path / "both.ranks.parquet")["side"].to_list() == ["A"] * 4 + ["B"] * 4


def test_a_report_and_its_page(read: trace_export.Run, tmp_path: Path) -> None:
    run = read.select(steps="2-3").align()
    assert run.report().steps["step"].to_list() == [2, 3]
    assert run.report() is run.report()
    page = run.write_report(tmp_path)
    assert page == tmp_path / "pipeline_report.html"
    assert "Idle time by cause" in page.read_text(encoding="utf-8")
    assert run.summary().steps == 2


def test_a_heat_map(logs: Path, read: trace_export.Run, tmp_path: Path) -> None:
    run = read.align()
    assert run.write_heat_map(tmp_path) == tmp_path / "pipeline_slowdown.svg"
    assert run.write_heat_map(tmp_path / "a.svg").read_text() == (tmp_path / "pipeline_slowdown.svg").read_text()
    with pytest.raises(trace_export.UsageError, match="ask for one of them"):
        api.report(logs, tmp_path, html=True, heat_map="svg")


def test_no_input_is_overwritten(read: trace_export.Run, tmp_path: Path) -> None:
    table, *_ = read.write(tmp_path, "csv")
    before = table.read_bytes()
    run = trace_export.load(table, steps=2)
    for force in (False, True):
        with pytest.raises(UsageError, match="is an input"):
            run.write(table, force=force)
        with pytest.raises(UsageError, match="is an input"):
            api.export(table, table, steps=2, force=force)
    (tmp_path / "mine.svg").write_text("not ours")
    with pytest.raises(UsageError, match="trace-export did not write it"):
        run.write(tmp_path / "mine.svg")
    assert table.read_bytes() == before
    assert run.write(tmp_path / "mine.svg", force=True) == [tmp_path / "mine.svg"]


def test_a_simulation_has_the_durations_of_the_command() -> None:
    """1F1B with p = 4, m = 8 takes (m + p - 1)(F + B), ZB-H1 m (F + B + W) + (p - 1)(F + B - W)."""
    ms = 1_000_000
    one = trace_export.simulate("1f1b", 4, 8)
    assert one.spans["end_ns"].max() == 11 * 30 * ms
    assert trace_export.simulate("zb-h1", 4, 8).spans["end_ns"].max() == 8 * 30 * ms + 3 * 10 * ms
    slow = trace_export.simulate("1f1b", stages=4, microbatches=8, costs={"forward": 15 * ms})
    assert slow.spans["end_ns"].max() == 11 * 35 * ms
    exact = trace_export.simulate("1f1b", 4, 8, trace_export.Costs(10 * ms, 20 * ms, transfer=0))
    assert exact.spans.equals(one.spans)
    assert one.theory().formula_idle_ns == 3 * 30 * ms
    assert repr(one) == "<Simulation .: step 0, stages 0-3, 0.33 s from the first block to the last, one clock>"


def test_a_run_says_what_it_is(read: trace_export.Run) -> None:
    assert repr(read).endswith(
        "steps 2-4, stages 0-3, 0.984 s from the first block to the last, each host on its own clock>"
    )


def test_inspect_takes_a_table(read: trace_export.Run, run_cli: Cli, tmp_path: Path) -> None:
    """Its counts are those of the run that it was written from."""
    run = read.align()
    (table,) = run.write(tmp_path / "blocks.parquet")
    result = trace_export.inspect(table)
    kinds = run.spans.group_by("rank", "kind").len().pivot("kind", index="rank", values="len").sort("rank")
    assert result.ranks.select("rank", "F", "B").rows() == kinds.select("rank", "F", "B").rows()
    assert result.verdict.startswith("can be drawn: 1F1B, 4 stages")
    assert run_cli("inspect", table).returncode == 0


def test_what_lies_in_a_folder(logs: Path) -> None:
    result = trace_export.inspect(logs)
    assert result.ranks.select("rank", "stage", "host", "steps", "blocks").rows() == [
        (0, 0, "machine0", 3, 51), (1, 1, "machine0", 3, 51), (2, 2, "machine1", 3, 51), (3, 3, "machine1", 3, 51),
    ]  # fmt: skip
    assert result.sources["kind"].to_list() == ["paddle"] * 4
    assert result.failures == ()
