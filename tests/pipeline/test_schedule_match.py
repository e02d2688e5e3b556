"""Recognising schedules in measured orders: golden orders, a real trace, and what must not be named."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from tests.schedules.test_schedule import golden
from trace_export.model import RANKS, SPANS, Profile, conform
from trace_export.pipeline.block_order import sequences
from trace_export.pipeline.schedule_match import Recognition, declare, deviations, recognise
from trace_export.schedules.schedule import Schedule, schedule
from trace_export.schedules.simulate import Costs, simulate


def run_of(s: Schedule) -> Profile:
    """A run of the schedule that does not say what it is."""
    profile = simulate(s, Costs(1000, 1200, 800, 10))
    return Profile(ranks=profile.ranks, spans=profile.spans)


def test_every_golden_order_is_recognised(shared: Path) -> None:
    for path in sorted((shared / "data" / "schedules" / "orders").glob("*.csv")):
        s = golden(path)
        profile = run_of(s)
        found = recognise(profile)
        assert found.certainty == "exact", path.stem
        assert found.distance == 0
        assert s.name in (found.schedule.name, *found.twins), path.stem
        assert deviations(sequences(profile), found).is_empty()


@pytest.mark.parametrize(
    ("name", "twins"),
    [
        ("1f1b", ("zb-h1",)), ("gpipe", ()), ("eager-1f1b", ("zb-h2",)), ("zb-h1", ()), ("zb-h2", ()), ("zb-v", ()),
        ("dualpipe", ()), ("dualpipev", ()), ("zbh1-paddle", ()), ("interleaved-zb1p", ()),
        ("interleaved", ()),
    ],
)  # fmt: skip
def test_names_and_those_that_cannot_be_told_apart(name: str, twins: tuple[str, ...]) -> None:
    found = recognise(run_of(schedule(name, 4, 12)))
    assert (found.schedule.name, found.certainty, found.twins) == (name, "exact", twins)


def test_group_of_interleaving() -> None:
    found = recognise(run_of(schedule("interleaved", 2, 12, 3, group=4)))
    assert (found.certainty, found.schedule.chunks, found.schedule.group) == ("exact", 3, 4)


@pytest.mark.parametrize("name", ["zb-v", "dualpipev", "interleaved"])
def test_without_weight_gradients_and_numbers(name: str) -> None:
    """A trace that names only forward and backward."""
    profile = run_of(schedule(name, 4, 8))
    spans = profile.spans.filter(pl.col("kind") != "W").with_columns(
        microbatch=pl.when(pl.col("kind") != "FB").then("microbatch")
    )
    found = recognise(Profile(ranks=profile.ranks, spans=spans))
    assert (found.schedule.name, found.certainty) == (name, "exact")


def test_micro_batches_that_count_on() -> None:
    profile = run_of(schedule("1f1b", 4, 8))
    spans = profile.spans.with_columns(pl.col("microbatch") + 800)
    assert recognise(Profile(ranks=profile.ranks, spans=spans)).certainty == "exact"


def test_any_removed_block_lowers_the_certainty() -> None:
    profile = run_of(schedule("1f1b", 2, 4))
    for row in range(len(profile.spans)):
        spans = profile.spans.with_row_index("i").filter(pl.col("i") != row).drop("i")
        cut = Profile(ranks=profile.ranks, spans=spans)
        assert recognise(cut).certainty != "exact", row
        assert len(deviations(sequences(cut), Recognition(schedule("1f1b", 2, 4)))) == 1, row


def test_first_deviation_is_named() -> None:
    """Stage 1 runs B1 before F3 instead of after it."""
    profile = run_of(schedule("1f1b", 3, 30))
    swapped = (pl.col("rank") == 1) & (pl.col("microbatch") == 10)
    moved = profile.spans.with_columns(
        start_ns=pl.when(swapped & (pl.col("kind") == "F")).then(pl.col("start_ns") + 2500).otherwise("start_ns")
    )
    changed = Profile(ranks=profile.ranks, spans=moved)
    found = recognise(changed)
    assert (found.schedule.name, found.certainty) == ("1f1b", "likely")
    assert deviations(sequences(changed), found).rows() == [(0, 0, 1, 1, 19, "F10.0", "B9.0")]


def test_steps_of_other_sizes_are_compared_with_their_own_order() -> None:
    """Batch size ramp-up: 4, then 8 micro-batches; nothing deviates."""
    small, large = (run_of(schedule("1f1b", 2, m)) for m in (4, 8))
    spans = pl.concat([small.spans, large.spans.with_columns(step=pl.lit(1, pl.Int32))])
    profile = Profile(ranks=small.ranks, spans=spans)
    found = recognise(profile)
    assert (found.certainty, found.schedule.microbatches) == ("exact", 8)
    assert deviations(sequences(profile), found).is_empty()


def test_what_is_recognised_is_declared_with_a_note() -> None:
    profile = declare(run_of(schedule("dualpipe", 4, 8)))
    assert (profile.declared.schedule, profile.declared.microbatches, profile.declared.chunks) == ("DualPipe", 8, 2)
    assert [(n.code, n.text.split()[-1]) for n in profile.notes] == [("schedule-recognised", "DualPipe")]
    assert declare(profile) is profile
    assert declare(Profile()).declared.schedule is None
    assert declare(run_of(schedule("1f1b", 1, 4))).declared.schedule is None


def test_weight_gradients_of_a_part_of_the_step() -> None:
    """MindSpeed marks the W blocks of one phase of DualPipeV only, and some backwards in two pieces."""
    profile = run_of(schedule("dualpipev", 4, 10))
    kept = profile.spans.filter((pl.col("kind") != "W") | (pl.col("microbatch") == 0))
    pieces = kept.filter(kept["kind"] == "B").head(3).with_columns(start_ns=pl.col("start_ns") + 1)
    recorded = Profile(ranks=profile.ranks, spans=pl.concat([kept, pieces]))
    found = recognise(recorded)
    assert (found.schedule.name, found.certainty, found.weights) == ("dualpipev", "exact", False)
    assert deviations(sequences(recorded), found).is_empty()


def test_order_of_a_search_is_not_forced_into_a_name(shared: Path) -> None:
    """Paddle's ZBVPP comes from a search over measured times."""
    truth = pl.read_csv(shared / "data" / "paddle" / "zbvpp_pp4_mb4" / "truth.csv")
    spans = truth.with_columns(start_ns=pl.col("start_us") * 1000, end_ns=pl.col("end_us") * 1000)
    ranks = truth.select("rank", "stage").unique()
    found = recognise(Profile(ranks=conform(ranks, RANKS), spans=conform(spans, SPANS)))
    assert found.certainty == "unknown"
    assert found.named is None


def test_evaluation_is_no_schedule() -> None:
    profile = run_of(schedule("gpipe", 3, 4))
    forward = Profile(ranks=profile.ranks, spans=profile.spans.filter(pl.col("kind") == "F"))
    assert recognise(forward).schedule is None
    assert recognise(Profile()).schedule is None


@pytest.mark.parametrize(
    ("sample", "name"),
    [
        ("fthenb_pp4_mb4", "gpipe"), ("1f1b_pir_pp4_mb8", "1f1b"), ("eager1f1b_pp4_mb8", "eager-1f1b"),
        ("vpp_pir_pp4_mb8", "interleaved"), ("zbh1_pp4_mb8", "zbh1-paddle"), ("tp2_pp2_dp2", "1f1b"),
    ],
)  # fmt: skip
def test_logs_of_paddle(shared: Path, sample: str, name: str) -> None:
    truth = pl.read_csv(shared / "data" / "paddle" / sample / "truth.csv")
    spans = truth.with_columns(start_ns=pl.col("start_us") * 1000, end_ns=pl.col("end_us") * 1000)
    ranks = truth.select("rank", "stage").unique()
    found = recognise(Profile(ranks=conform(ranks, RANKS), spans=conform(spans, SPANS)))
    assert (found.schedule.name, found.certainty) == (name, "exact")


def test_real_interleaved_run(shared: Path) -> None:
    """A real Megatron iteration on 4 ranks with 4 chunks: begin and end events, the numbers on the end event."""
    events = json.loads((shared / "data" / "schedules" / "real_vpp4_p4_m8" / "trace.json").read_text())
    open_at: dict[tuple[object, object], float] = {}
    rows = []
    for event in events:
        if event.get("name") not in ("forward", "backward"):
            continue
        key = (event["pid"], event["name"])
        if event["ph"] == "B":
            open_at[key] = event["ts"]
        else:
            times = {"start_ns": round(open_at.pop(key) * 1000), "end_ns": round(event["ts"] * 1000)}
            args = event["args"]
            kind = "F" if event["name"] == "forward" else "B"
            rows.append(
                {"rank": args["pp_rank"], "kind": kind, "microbatch": args["microbatch"], "chunk": args["model_chunk"]}
                | times
            )
    spans = pl.DataFrame(rows).with_columns(run=0, step=10)
    ranks = pl.DataFrame({"rank": range(4), "stage": range(4)})
    found = recognise(Profile(ranks=conform(ranks, RANKS), spans=conform(spans, SPANS)))
    assert (found.schedule.name, found.certainty, found.schedule.chunks) == ("interleaved", "exact", 4)
    assert found.schedule.microbatches == 8
