"""The layout: which tracks there are, in which order, and what lies on each."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from polars import selectors

from tests.support.profiles import (
    ORIGIN,
    detailed,
    forward_edges,
    memory_counter,
    profile,
    span,
    two_stages,
    with_devices,
)
from trace_export.chart.chart import Chart, Track
from trace_export.chart.layout import ChartOptions, Overlay, lay_out
from trace_export.model import WORD, Declared, Profile


def tree(chart: Chart) -> list[str]:
    """The tracks in the order they are drawn, each level two blanks to the right."""
    tracks = {t.id: t for part in chart.parts() for t in part.tracks}
    children: dict[int | None, list[Track]] = {}
    for track in tracks.values():
        children.setdefault(track.parent, []).append(track)

    def lines(track: Track, depth: int) -> list[str]:
        text = "  " * depth + track.name + (f" (lane {track.lane})" if track.lane else "")
        below = sorted(children.get(track.id, []), key=lambda t: (t.order, t.lane))
        return [text, *(line for t in below for line in lines(t, depth + 1))]

    (root,) = children[None]
    return lines(root, 0)


def on(chart: Chart, name: str) -> pl.DataFrame:
    """The slices on all lanes of the track called `name`."""
    ids = [t.id for part in chart.parts() for t in part.tracks if t.name == name]
    texts = selectors.categorical().cast(pl.String)
    frames = [part.slices.filter(pl.col("track").is_in(ids)).with_columns(texts) for part in chart.parts()]
    return pl.concat(frames, how="diagonal_relaxed").sort("start_ns", "end_ns")


def test_stages_in_order_under_one_root_with_explicit_places() -> None:
    chart = lay_out(two_stages())
    assert tree(chart) == [
        "PP chart · 1F1B · PP=2",
        "  Steps",
        "  stage 0 · rank 0",
        "  stage 1 · rank 2",
        "  stages busy",
    ]
    assert [t.id for t in chart.main.tracks] == list(range(1, 6))
    assert len({(t.parent, t.order, t.lane) for t in chart.main.tracks}) == 5
    assert chart.origin_ns == ORIGIN


def test_every_rank_once_below_the_first_of_its_stage() -> None:
    chart = lay_out(two_stages(), ChartOptions(tracks="rank"))
    expected = ["  Steps", "  stage 0 · rank 0", "    rank 1", "  stage 1 · rank 2", "    rank 3", "  stages busy"]
    assert tree(chart)[1:] == expected
    assert on(chart, "rank 3")["rank"].unique().to_list() == [3]
    assert len(chart.main.slices.filter(pl.col("category") == "block")) == 20


def test_a_slice_carries_what_the_block_says_and_no_more() -> None:
    block = on(lay_out(two_stages()), "stage 1 · rank 2").row(0, named=True)
    arguments = {k: v for k, v in block.items() if v is not None and k not in ("track", "category", "seed")}
    assert arguments == {
        "name": "F0", "start_ns": ORIGIN + 110, "end_ns": ORIGIN + 210, "kind": "F", "microbatch": 0, "chunk": 0,
        "stage": 1, "rank": 2, "step": 0, "host": "node-a", "origin": "device", "marker": "F-0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"kind": "F", "microbatch": 3}, "F3"),
        ({"kind": "F", "microbatch": 3, "chunk": 1}, "F3.1"),
        ({"kind": "W", "microbatch": None}, "W"),
        ({"kind": "OPT", "microbatch": None, "chunk": 1}, "Optimizer"),
        ({"kind": "FB", "microbatch": 5, "microbatch_b": 2}, "F5+B2"),
        ({"kind": "FB", "microbatch": 5, "chunk": 0, "microbatch_b": 2, "chunk_b": 1}, "F5.0+B2.1"),
        ({"kind": None, "microbatch": None, "marker": "loss 损失"}, "loss 损失"),
        ({"kind": None, "microbatch": None}, "block"),
    ],
)
def test_names(more: dict[str, object], name: str) -> None:
    chart = lay_out(profile([{**span(0, None, None, 0, 1), **more}], {0: 0}))
    assert on(chart, "stage 0 · rank 0")["name"].to_list() == [name]


def test_a_chunk_is_named_on_all_ranks_where_any_rank_has_several() -> None:
    chart = lay_out(profile([span(0, "F", 1, 0, 1, chunk=0), span(1, "F", 1, 1, 2, chunk=1)], {0: 0, 1: 1}))
    assert on(chart, "stage 0 · rank 0")["name"].to_list() == ["F1.0"]


def test_overlapping_blocks_go_to_lanes_of_one_name() -> None:
    blocks = [span(0, "F", 0, 0, 100), span(0, "B", 0, 50, 150), span(0, "F", 1, 100, 120), span(0, "B", 1, 110, 115)]
    chart = lay_out(profile(blocks, {0: 0}))
    assert tree(chart)[2:5] == [
        "  stage 0 · rank 0",
        "  stage 0 · rank 0 (lane 1)",
        "  stage 0 · rank 0 (lane 2)",
    ]
    lanes = {t.id: t.lane for t in chart.main.tracks}
    result = {(s["name"], lanes[s["track"]]) for s in on(chart, "stage 0 · rank 0").to_dicts()}
    assert result == {("F0", 0), ("B0", 1), ("F1", 0), ("B1", 2)}


def test_a_block_that_ends_before_it_starts_is_empty() -> None:
    chart = lay_out(profile([span(0, "F", 0, 10, 5), span(0, "B", 0, 20, 30)], {0: 0}))
    assert on(chart, "stage 0 · rank 0").select("start_ns", "end_ns").row(0) == (ORIGIN + 10, ORIGIN + 10)


def test_steps_of_two_runs_are_kept_apart() -> None:
    blocks = [span(0, "F", 0, 0, 10), span(1, "B", 0, 5, 30), span(0, "F", 0, 50, 60, step=1)]
    blocks += [span(0, "F", 0, 1000, 1010, run=1), span(0, "F", 9, 2000, 2001, step=None, run=1)]
    steps = on(lay_out(profile(blocks, {0: 0, 1: 1})), "Steps")
    rows = steps.select("name", "run", pl.col("start_ns", "end_ns") - ORIGIN, "blocks", "start_unix_ns").rows()
    assert rows == [
        ("step 0", 0, 0, 30, 2, ORIGIN),
        ("step 1", 0, 50, 60, 1, ORIGIN + 50),
        ("step 0", 1, 1000, 1010, 1, ORIGIN + 1000),
    ]


def test_stages_busy_counts_one_rank_of_each_stage() -> None:
    chart = lay_out(two_stages(), ChartOptions(tracks="rank"))
    samples = chart.main.samples
    times = range(1001)
    working = two_stages().spans.filter(pl.col("kind") != "OPT")  # by the definition of the bubble
    blocks = working.filter(pl.col("rank").is_in([0, 2])).select("rank", "start_ns", "end_ns").rows()
    busy = [len({r for r, start, end in blocks if start - ORIGIN <= t < end - ORIGIN}) for t in times]
    changes = [(ORIGIN + t, busy[t]) for t in times if t == 0 or busy[t] != busy[t - 1]]
    assert samples.select("ts_ns", "value").rows() == changes


def test_overlapping_blocks_of_a_stage_count_once() -> None:
    chart = lay_out(profile([span(0, "F", 0, 0, 10), span(0, "B", 0, 5, 20), span(0, "F", 1, 20, 30)], {0: 0}))
    assert chart.main.samples.select("ts_ns", "value").rows() == [(ORIGIN, 1), (ORIGIN + 30, 0)]


def test_counters_of_the_source_are_tracks_of_their_rank() -> None:
    samples = memory_counter()
    broken = samples.with_columns(value=pl.Series([float("nan"), None]))
    chart = lay_out(two_stages(counters=pl.concat([samples, broken])))
    track = next(t for t in chart.main.tracks if t.name == "memory · stage 0 · rank 0")
    assert (track.kind, track.unit) == ("counter", "bytes")
    assert chart.main.tracks[(track.parent or 0) - 1].name == "Counters"
    samples = chart.main.samples.filter(pl.col("track") == track.id)
    assert samples.select("ts_ns", "value").rows() == [(ORIGIN, 5.0), (ORIGIN + 9, 7.5)]


def test_the_title_names_the_schedule_as_told() -> None:
    made = two_stages()
    named = replace(made, declared=Declared(schedule="interleaved"))
    assert lay_out(named).title == "PP chart · Interleaved 1F1B · PP=2"
    assert lay_out(replace(made, declared=Declared(pp=8))).title == "PP chart · PP=8"


def test_arrows_only_between_blocks_that_are_drawn() -> None:
    made = two_stages()
    edges = forward_edges(made.spans)
    for tracks, count in (("stage", 4), ("rank", 8)):
        slices = lay_out(made, ChartOptions(tracks=tracks, edges=edges)).main.slices  # type: ignore[arg-type]
        leaving, arriving = (
            dict(slices.explode(c).drop_nulls(c).select(c, pl.concat_str("name", "rank")).rows())
            for c in ("flow_out", "flow_in")
        )
        assert len(leaving) == count
        assert leaving.keys() == arriving.keys()
        assert {(leaving[i], arriving[i]) for i in leaving} >= {("F00", "F02"), ("B12", "B10")}


def test_words_of_the_caller_become_arguments() -> None:
    arguments = pl.DataFrame({"run": [0], "step": [0], "bubble %": [12.5]})
    chart = lay_out(two_stages(), ChartOptions(step_arguments=arguments))
    assert on(chart, "Steps")["bubble %"].to_list() == [12.5]


def test_overlays_lie_below_their_stage() -> None:
    times = {"start_ns": ORIGIN - 5, "end_ns": ORIGIN}
    model = pl.DataFrame({"stage": [0, 1], "kind": ["F", "B"], "name": ["F0", "B0"], **times})
    bubbles = pl.DataFrame({"stage": [1, 7], "name": "bubble", "cause": "warm-up", **times})
    overlays = (Overlay("stage {} (1F1B, model)", model), Overlay("stage {} · idle", bubbles))
    chart = lay_out(two_stages(), ChartOptions(overlays=overlays))
    assert tree(chart)[1:] == [
        "  Steps",
        "  stage 0 · rank 0",
        "  stage 0 (1F1B, model)",
        "  stage 1 · rank 2",
        "  stage 1 (1F1B, model)",
        "  stage 1 · idle",
        "  stages busy",
    ]
    assert chart.origin_ns == ORIGIN - 5
    (idle,) = on(chart, "stage 1 · idle").to_dicts()
    assert (idle["name"], idle["cause"]) == ("bubble", "warm-up")
    assert on(chart, "stage 0 (1F1B, model)")["seed"].to_list() == ["forward-op"]


def test_no_two_siblings_have_one_name() -> None:
    """Viewers would draw them as one track."""
    other = pl.DataFrame({"stage": [0, 1], "name": "x", "start_ns": ORIGIN, "end_ns": ORIGIN + 1})
    lines = tree(lay_out(two_stages(), ChartOptions(overlays=(Overlay("Steps", other),))))
    assert sorted(n for line in lines if (n := line.strip()).startswith("Steps")) == ["Steps", "Steps (2)", "Steps (3)"]


def test_ranks_without_a_stage_have_tracks_of_their_own() -> None:
    chart = lay_out(profile([span(0, "F", 0, 0, 1), span(4, "F", 0, 0, 1)], {0: None, 4: None}))
    assert tree(chart) == ["PP chart · 1F1B", "  Steps", "  rank 0", "  rank 4"]


def test_ranks_that_were_not_read_are_not_drawn() -> None:
    assert tree(lay_out(profile([span(3, "F", 0, 0, 1)], {1: 0, 3: 0})))[2] == "  stage 0 · rank 3"


def test_tracks_say_where_they_come_from() -> None:
    chart = lay_out(two_stages(), detailed(two_stages()))
    text = chart.main.tracks[2].description
    for words in ("host node-a", "device 0", "stage is inferred", "p2p", "error 0.8 µs", "at most 2.4 µs"):
        assert words in text
    assert f"unix time {ORIGIN} ns" in chart.main.tracks[0].description
    assert "2025-11-20T23:40:00.123456789Z" in chart.main.tracks[0].description
    assert chart.attributes["origin_unix_ns"] == ORIGIN


def lay_out_tasks(made: Profile) -> pl.DataFrame:
    """The device tasks drawn, with starts of the Unix epoch."""
    chart = lay_out(made, detailed(made))
    streams = {t.id for part in chart.parts() for t in part.tracks if "stream" in t.name}
    slices = pl.concat([part.slices.select("track", "start_ns") for part in chart.parts()])
    return slices.filter(pl.col("track").is_in(streams))


def test_streams_and_communication_lie_under_ranks(tmp_path: Path) -> None:
    made = two_stages()
    made = replace(made, **with_devices(made, tmp_path))
    assert "Ranks" not in " ".join(tree(lay_out(made)))
    chart = lay_out(made, detailed(made))
    place = tree(chart).index("  Ranks")
    assert tree(chart)[place:] == [
        "  Ranks",
        "    rank 0",
        "      communication",
        "      stream 7 · compute",
        "      stream 13",
        "      stream 13 (lane 1)",
        "    rank 2",
        "      communication",
    ]
    # The clock of the host is ahead by 1500 ns, and device tasks are read in the host's own clock.
    assert chart.origin_ns == ORIGIN - 1550
    assert on(chart, "stream 13")["name"].to_list() == ["ncclSend", "ncclRecv", "copy 数据"]
    assert on(chart, "communication").select("name", "category", "bytes").rows() == [
        ("send F0", "p2p", 4096),
        ("allreduce", "collective", 8),
    ]
    ids = [t.id for part in chart.parts() for t in part.tracks]
    assert len(set(ids)) == len(ids)
    assert [t.id for part in chart.parts() for t in part.tracks] == ids  # a second reading gives the same


def test_communication_that_is_a_device_task_is_drawn_once(tmp_path: Path) -> None:
    """On its stream, under the name of the transfer; two transfers of one kernel share it."""
    made = two_stages()
    made = replace(made, **with_devices(made, tmp_path))
    (file,) = made.kernels
    kernel = pl.read_ipc(file.path).filter(pl.col("name") == "ncclSend").row(0, named=True)
    moved = made.p2p.with_columns(start_ns=pl.lit(kernel["start_ns"] - 1500), end_ns=pl.lit(kernel["end_ns"] - 1500))
    second = moved.with_columns(role=pl.lit("recv", WORD), microbatch=pl.lit(7, pl.Int32))
    made = replace(made, p2p=pl.concat([moved, second, made.p2p]))
    chart = lay_out(made, detailed(made))
    stream = on(chart, "stream 13")
    assert stream.select("name", "category", "kernel", "peer", "microbatch", "bytes").rows() == [
        ("send F0, recv F7", "communication", "ncclSend", 2, None, 4096),
        ("ncclRecv", "communication", None, None, None, None),
        ("copy 数据", "memory", None, None, None, None),
    ]
    assert on(chart, "communication")["name"].to_list() == ["send F0", "allreduce"]  # the former called at other times


def test_a_part_of_the_run_that_holds_few_device_tasks_or_none(tmp_path: Path) -> None:
    made = two_stages()
    made = replace(made, **with_devices(made, tmp_path))
    starts = lay_out_tasks(made)["start_ns"]
    late = int(starts.max() or 0)
    cut = lay_out_tasks(replace(made, window_ns=(late, late + 10**9)))
    assert 0 < len(cut) < len(starts)
    assert lay_out_tasks(replace(made, window_ns=(late + 10**10, late + 10**11))).is_empty()


@pytest.mark.parametrize(
    ("color_by", "seeds"),
    [
        ("kind", ["forward-op", "forward-op", "Bwd_pipeline", "Bwd_pipeline", "optim_time"]),
        ("microbatch", ["mb0", "mb1", "mb0", "mb1", None]),
        ("rank", ["rank 0"] * 5),
        ("none", [None] * 5),
    ],
)
def test_color_by(color_by: str, seeds: list[str | None]) -> None:
    chart = lay_out(two_stages(), ChartOptions(color_by=color_by))  # type: ignore[arg-type]
    assert on(chart, "stage 0 · rank 0")["seed"].to_list() == seeds
