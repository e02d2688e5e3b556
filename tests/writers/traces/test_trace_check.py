"""The trace processor finds every slice of the chart in the file, and the comparison finds what was lost or changed."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from tests.support.charts import write_trace
from tests.support.profiles import concluded, two_stages
from tests.support.rows import slow
from tests.support.trace_check import differences
from tests.writers.traces.test_writers import FORMATS, full_chart
from trace_export import load
from trace_export.analysis.bubbles import Bubbles
from trace_export.chart.chart import Chart
from trace_export.chart.size import drawn_ranks
from trace_export.draw import Content, draw
from trace_export.options import drawing
from trace_export.write import WriteOptions, announce, write_files
from trace_export.writers.outputs import Outputs
from trace_export.writers.traces import chrome, perfetto


def without(chart: Chart, kept: pl.Expr) -> Chart:
    return replace(chart, main=replace(chart.main, slices=chart.main.slices.filter(kept)))


@pytest.mark.parametrize(("writer", "name"), FORMATS)
def test_a_lost_a_moved_and_an_added_slice_are_found(writer: ModuleType, name: str, tmp_path: Path) -> None:
    chart = full_chart(tmp_path)
    path = tmp_path / name
    write_trace(writer, without(chart, ~((pl.col("name") == "B1") & (pl.col("rank") == 2).fill_null(False))), path)
    result = differences(chart, path)
    assert 'track "stage 1 · rank 2": 4 slices in the file, 5 expected' in result
    assert any("arrows: 7 in the file, 8 expected" in line for line in result)
    longer = pl.when(pl.col("name") == "Optimizer").then(pl.col("end_ns") + 1).otherwise("end_ns")
    write_trace(
        writer, replace(chart, main=replace(chart.main, slices=chart.main.slices.with_columns(end_ns=longer))), path
    )
    # The first event is 1550 ns before the first block, and the last block ends 1003 ns after that one.
    assert 'track "rank 3": 2554 ns to the last in the file, 2553 expected' in differences(chart, path)
    write_trace(writer, chart, path)
    result = differences(without(chart, (pl.col("name") != "F0").fill_null(False)), path)
    assert 'track "stage 0 · rank 0": 5 slices in the file, 4 expected' in result


def test_overlap_that_reached_the_file_is_found(tmp_path: Path) -> None:
    """Crossing slices on one track: END carries its name, so the trace processor sees that it closes the wrong one."""
    chart = full_chart(tmp_path)
    crossing = chart.main.slices.with_columns(
        end_ns=pl.when(pl.col("name") == "F0").then(pl.col("end_ns") + 50).otherwise("end_ns")
    )
    chart = replace(chart, main=replace(chart.main, slices=crossing))
    write_trace(perfetto, chart, tmp_path / "a.pftrace")
    assert any("misplaced_end_event" in line for line in differences(chart, tmp_path / "a.pftrace"))
    write_trace(chrome, chart, tmp_path / "a.json")
    assert any("slice_drop_overlapping_complete_event" in line for line in differences(chart, tmp_path / "a.json"))


@pytest.mark.parametrize("name", ["paddle/two_machines", "nsys", "ascend", *slow(["mindspore", "kineto"])])
def test_every_sample_with_all_that_can_be_drawn(name: str, samples: Path, tmp_path: Path) -> None:
    """Every rank and stream, idle times and the model: the trace processor finds all of it and counts no error."""
    run = load(samples / name, detail="kernels").align()
    made, failures = run._with_device_tasks(drawn_ranks(run.profile, "rank"), tmp_path)
    assert failures == []
    options = WriteOptions(drawing=drawing(tracks="rank", bubbles=True, model=True), gzip=True, out=tmp_path / "out")
    content = Content(Bubbles(made), detail="kernels")
    chart = draw(content, options.drawing)
    outputs = Outputs()
    write_files(content, options, samples / name, outputs)
    traces = [path for path in outputs.written if path.suffix == ".gz"]
    assert len(traces) == 2
    assert [differences(chart, path) for path in traces] == [[], []]


@pytest.mark.parametrize("ahead_ns", [-100, -11, -10, -9, 0, 100])
def test_clocks_that_disagree_leave_only_arrows_that_lead_on(ahead_ns: int, tmp_path: Path) -> None:
    made = concluded(two_stages())
    late = made.ranks.filter(pl.col("stage") == 1)["rank"].implode()
    moved = pl.when(pl.col("rank").is_in(late)).then(ahead_ns).otherwise(0)
    spans = made.spans.with_columns(pl.col("start_ns") + moved, pl.col("end_ns") + moved)
    shown = replace(made, spans=spans)
    options = WriteOptions(drawing=drawing(tracks="rank"))
    content = Content(Bubbles(shown))
    chart = draw(content, options.drawing)
    edges = shown.edge_rows()
    starts = spans["start_ns"].to_list()
    lost = sum(starts[dst] <= starts[src] for src, dst in edges.select("src", "dst").iter_rows())
    assert chart.main.slices["flow_out"].list.len().sum() == edges.height - lost
    for writer, name in ((chrome, "a.json"), (perfetto, "a.pftrace")):
        write_trace(writer, chart, tmp_path / name)
        assert differences(chart, tmp_path / name) == []
    said = [note.text for note in announce(content, options)]
    assert [text.split(" of the ways")[0] for text in said] == ([f"{lost} of {edges.height}"] if lost else [])
