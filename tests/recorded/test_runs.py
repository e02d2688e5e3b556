"""Pipelines, schedules and clocks of runs that others recorded or simulated."""

import json
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from tests.pipeline.test_messages import same
from tests.support.profiles import concluded, recognised
from trace_export.clocks import alignment_file
from trace_export.clocks.align import align
from trace_export.clocks.observations import block_messages, violations
from trace_export.model import COLLECTIVES, P2P, RANKS, SPANS, Profile, conform
from trace_export.pipeline.collectives import number
from trace_export.pipeline.messages import pair
from trace_export.schedules.schedule import schedule

FIGURES_US = {"ntp_16hosts": (1.5, 6.0), "packed_4hosts": (1.5, 6.0), "cut_4stages": (2.0, 7.0)}
"""Root mean square and largest error that the reference fit was to reach on these simulated runs."""


def simulated(folder: Path) -> Profile:
    """The events of a simulated run as a reader would deliver them."""
    events = pl.read_parquet(folder / "events.parquet")
    ends = events.filter(pl.col("kind").is_in(["send", "recv"])).with_columns(role="kind")
    peer = pl.when(pl.col("kind") == "send").then("dst_rank").otherwise("src_rank")
    met = events.filter(pl.col("kind") == "collective").with_columns(op="name")
    blocks = events.filter(pl.col("kind") == "compute").with_columns(kind="name")
    return Profile(
        ranks=conform(events.select("rank", "host", "stage", "dp").unique().sort("rank"), RANKS),
        spans=conform(blocks, SPANS),
        p2p=conform(ends.with_columns(peer=peer), P2P),
        collectives=conform(met, COLLECTIVES),
    )


def test_order_of_a_search_is_not_forced_into_a_name(recorded: Path) -> None:
    """Paddle's ZBVPP comes from a search over measured times."""
    truth = pl.read_csv(recorded / "paddle" / "zbvpp_pp4_mb4" / "truth.csv")
    spans = truth.with_columns(start_ns=pl.col("start_us") * 1000, end_ns=pl.col("end_us") * 1000)
    ranks = truth.select("rank", "stage").unique()
    result = recognised(Profile(ranks=conform(ranks, RANKS), spans=conform(spans, SPANS)))
    assert result.certainty == "unknown"
    assert result.named is None


def test_real_interleaved_run(recorded: Path) -> None:
    """A real Megatron iteration on 4 ranks with 4 chunks: begin and end events, the numbers on the end event."""
    events = json.loads((recorded / "schedules" / "real_vpp4_p4_m8" / "trace.json").read_text())
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
    result = recognised(Profile(ranks=conform(ranks, RANKS), spans=conform(spans, SPANS)))
    assert (result.plan.name, result.certainty, result.plan.chunks) == ("interleaved", "exact", 4)
    assert result.plan.microbatches == 8


@pytest.mark.parametrize("name", ["ntp_16hosts", "packed_4hosts", "cut_4stages"])
def test_recorded_runs(recorded: Path, name: str) -> None:
    folder = recorded / "clocks" / name
    events = pl.read_parquet(folder / "events.parquet").join(
        pl.read_parquet(folder / "truth_events.parquet").select("event_id", "link"), on="event_id"
    )
    ends = events.filter(pl.col("kind").is_in(["send", "recv"]))
    peer = pl.when(pl.col("kind") == "send").then("dst_rank").otherwise("src_rank")
    profile = pair(Profile(p2p=conform(ends.with_columns(role="kind", peer=peer), P2P)))
    true = ends.filter(pl.col("kind") == "send").join(ends.filter(pl.col("kind") == "recv"), on="link", suffix="_recv")
    expected = true.select(
        pl.col("src_rank", "dst_rank").cast(pl.Int32), send_start_ns="start_ns", send_end_ns="end_ns",
        recv_start_ns="start_ns_recv", recv_end_ns="end_ns_recv",
    )  # fmt: skip
    assert same(profile.messages, expected)


@pytest.mark.parametrize("name", FIGURES_US)
def test_recorded_runs_are_placed_as_well_as_is_possible(recorded: Path, tmp_path: Path, name: str) -> None:
    folder = recorded / "clocks" / name
    profile = pair(number(simulated(folder)))
    done = align(profile)
    assert violations(done.messages) == 0 < violations(profile.messages)
    alignment_file.write(done, tmp_path / "clocks.json")
    scorer = [
        sys.executable,
        recorded.parent / "tools" / "gen_clocks.py",
        "score",
        folder,
        "--fit",
        tmp_path / "clocks.json",
    ]
    score = json.loads(subprocess.run(scorer, capture_output=True, text=True, check=True).stdout)
    rms, worst = FIGURES_US[name]
    assert score["rms_us"] < rms
    assert score["max_us"] < worst
    assert score["recv_end_before_send_start"] == 0


@pytest.mark.parametrize(("sample", "true_us"), [("multi_2x2_skew", 3200), ("multi_2x2_envlog_swapped", 1900)])
def test_blocks_alone_align_the_machines_of_a_log(recorded: Path, sample: str, true_us: int) -> None:
    truth = pl.read_csv(recorded / "paddle" / sample / "truth.csv")
    truth = truth.with_columns(start_ns=pl.col("start_us") * 1000, end_ns=pl.col("end_us") * 1000)
    ranks = truth.select("rank", pl.col("machine").cast(pl.String).alias("host"), "stage").unique().sort("rank")
    profile = concluded(Profile(ranks=conform(ranks, RANKS), spans=conform(truth, SPANS)))
    done = align(profile)
    assert set(done.clocks["evidence"]) == {"blocks"}
    host = ranks.join(done.clocks, on="host").select("rank", "sd_ns", "bound_ns")
    moved = truth.with_columns(shown=done.spans["start_ns"]).join(host, on="rank")
    left = (moved["shown"] - moved["true_start_us"] * 1000).to_numpy() / 1e3
    apart = left.max() - left.min()
    assert apart < 2 * 2 * done.clocks["sd_ns"][0] / 1e3 < 20
    assert apart < done.clocks["bound_ns"][0] / 1e3 < true_us
    before, after = (block_messages(p) for p in (profile, done))
    assert violations(before) > 0
    assert violations(after) == 0


PADDLE_MODES = {
    "FThenB": "gpipe", "1F1B": "1f1b", "Eager1F1B": "eager-1f1b", "ZBH1": "zbh1-paddle", "VPP": "interleaved-paddle",
}  # fmt: skip


def test_orders_of_paddle(recorded: Path) -> None:
    """The job lists that Paddle's own passes made, but for those of a search (ZBVPP)."""
    path = recorded / "paddle" / "job_lists.json"
    checked = 0
    for mode, ranks in json.loads(path.read_text()).items():
        name, chunks, p, m, split = re.fullmatch(
            r"(ZBH1|VPP|ZBVPP|\w+B)(\d?)_pp(\d)_mb(\d)(?:_split(\d))?", mode
        ).groups()
        if name == "ZBVPP":
            continue
        halves = split == "1" and p == m
        name = "interleaved-split-paddle" if halves else PADDLE_MODES[name]
        ours = schedule(name, int(p), int(m), int(chunks) if chunks else None).ops
        for stage, jobs in enumerate(ranks):
            types = {"forward": "F", "backward": "B", "backward_b": "B", "backward_w": "W"}
            expected = []
            for job, microbatch in jobs:
                base, chunk = re.fullmatch(r"(\w+?)(\d*)(?:_reduce)?", job).groups()
                if base in types:
                    expected.append((types[base], int(chunk or 0), microbatch))
            rank = ours.filter(pl.col("stage") == stage).select("kind", "chunk", "microbatch")
            assert rank.rows() == expected, (mode, stage)
            checked += 1
    assert checked > 50
