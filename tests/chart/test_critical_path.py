"""The critical path in the chart, and the tables beside the blocks."""

from pathlib import Path

import polars as pl
import pytest

from samples.generators.operation_table import Job, usual
from trace_export import Run, UsageError, load, simulate
from trace_export.analysis.bubbles import Bubbles
from trace_export.chart.colours import IDLE_SEEDS, SEEDS
from trace_export.chart.critical_path import TRACK
from trace_export.draw import Content, draw
from trace_export.options import drawing


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("logs")
    slow = lambda c: 1.5 if c.stage == 2 and c.optype == "forward-compute" else 1  # noqa: E731
    Job(steps=(0, 1), length=lambda c: usual(c) * slow(c)).write(folder)
    return load(folder).align()


def test_the_path_is_a_track_and_its_blocks_keep_the_colours_of_their_kinds() -> None:
    run = simulate("1f1b", 4, 8, {"transfer": 1_000_000})
    path = run.critical_path()
    chart = draw(Content(Bubbles(run.profile), explanation=run.explain()), drawing(tracks="rank"))
    (track,) = [t for t in chart.main.tracks if t.name == TRACK and not t.lane]
    slices = chart.main.slices.filter(pl.col("track") == track.id)
    assert (slices["end_ns"] - slices["start_ns"]).sum() == path.steps["length_ns"].sum()
    works = slices.filter(pl.col("part") == "work")
    assert works.height == slices["kind"].count()
    assert dict(works.select("kind", "seed").unique().rows()) == {kind: SEEDS[kind] for kind in ("F", "B")}
    coloured = chart.main.slices.filter(pl.col("category") == "block", pl.col("critical") == "yes")
    assert all(seed == SEEDS[kind] for kind, seed in coloured.select("kind", "seed").rows())
    assert coloured.height == path.parts.filter(pl.col("id").is_not_null())["id"].n_unique()
    assert set(coloured["slack ms"]) == {0}
    assert set(coloured["critical"]) == {"yes"}
    rest = chart.main.slices.filter(pl.col("critical").is_null(), pl.col("category") == "block")
    assert rest["slack ms"].drop_nulls().max() > 0


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """In ms: F0 takes 3 to arrive, stage 1 runs nothing between its blocks for 2, and no stage between steps for 4."""
    blocks = [(0, "F", 0, 2), (1, "F", 5, 7), (1, "B", 9, 11), (0, "B", 11, 13)]
    rows = [f"{rank},{kind},{step},{a + 17 * step},{b + 17 * step}" for step in (0, 1) for rank, kind, a, b in blocks]
    path = tmp_path_factory.mktemp("by_hand") / "blocks.csv"
    path.write_text("\n".join(("rank,kind,step,start,end", *rows)), "utf-8")
    return load(path, columns="rank=rank,stage=rank,kind=kind,step=step,start=start:ms,end=end:ms").align()


def test_waits_on_the_path_have_the_names_and_colours_of_idle_time(by_hand: Run) -> None:
    chart = draw(Content(Bubbles(by_hand.profile), explanation=by_hand.explain()), drawing())
    (track,) = [t for t in chart.main.tracks if t.name == TRACK and not t.lane]
    waits = chart.main.slices.filter(pl.col("track") == track.id, pl.col("part") != "work").sort("start_ns")
    length = pl.col("end_ns") - pl.col("start_ns")
    assert waits.select("name", length / 1e6, "seed").rows() == [
        ("wire 0 → 1", 3, IDLE_SEEDS["exposed transfer"]),
        ("late start · stage 1", 2, IDLE_SEEDS["late start"]),
        ("pause · stage 0", 4, IDLE_SEEDS["late start"]),
    ]


def test_a_picture_says_why_its_last_step_has_no_path(by_hand: Run, tmp_path: Path) -> None:
    for steps, said in (("0-1", True), ("0", False)):
        (picture,) = by_hand.select(steps=steps).write(tmp_path / f"{steps}.svg", critical_path=True)
        assert ("A step has no critical path if no step after it was recorded." in picture.read_text("utf-8")) == said


def test_the_end_of_an_arrow_says_who_was_late(run: Run) -> None:
    """A transfer takes 1 ms; in 1F1B a rank computes while its data come, so that receivers are late, too."""
    chart = draw(Content(Bubbles(run.profile), explanation=run.explain()), drawing())
    ends = chart.main.slices.filter(pl.col("wire ms").is_not_null())
    assert ends["wire ms"].to_list() == pytest.approx([1.0] * ends.height, abs=1e-4)
    first = ends.filter(pl.col("rank") == 2, pl.col("step") == 0).sort("start_ns").row(0, named=True)
    assert (first["kind"], first["microbatch"], first["data from rank"]) == ("F", 0, 0)
    assert first["sender late ms"] == pytest.approx(15, abs=1e-3)  # a gather of 5 ms, a forward of 10
    assert ends["receiver late ms"].max() > 1


def test_further_tables(run: Run, tmp_path: Path) -> None:
    files = run.write(tmp_path, "parquet", tables="messages,ranks,steps,critical_path")
    names = ("messages", "ranks", "steps", "critical_path")
    assert [file.name for file in files] == [f"pipeline_profile.{name}.parquet" for name in names]
    # The times of the operation table are 32-bit seconds.
    messages = pl.read_parquet(tmp_path / "pipeline_profile.messages.parquet")
    assert messages.equals(run.messages)
    assert messages["wire_ns"].to_list() == pytest.approx([1e6] * messages.height, abs=40)
    parts = pl.read_parquet(tmp_path / "pipeline_profile.critical_path.parquet")
    lengths = run.critical_path().steps["length_ns"].to_list()
    assert parts.group_by("step").agg(pl.col("ns").sum()).sort("step")["ns"].to_list() == lengths


@pytest.mark.parametrize(
    ("formats", "says"), [("csv", "add the format parquet"), ("parquet,csv", "leave out the format")]
)
def test_further_tables_are_parquet(formats: str, says: str, run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        run.write(tmp_path, formats, tables="messages")
