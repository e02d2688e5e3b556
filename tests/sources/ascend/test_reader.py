"""Ascend and MindSpore profiles: every generated cluster equals its truth, to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from trace_export.clocks.apply import task_batches
from trace_export.export import Loaded, LoadOptions, with_tasks
from trace_export.model import Declared, Profile
from trace_export.pipeline import labels, messages, peers, stages
from trace_export.sources.find import find
from trace_export.sources.merge import merge
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

DATABASES = [
    "1f1b_batchsendrecv_pp4_mb6", "1f1b_clipped_pp2_mb6", "1f1b_level0_pp2_mb4", "1f1b_levelnone_pp4_mb6",
    "1f1b_pp4_mb8", "1f1b_tp_pp_dp_order_pp2_dp2", "dualpipev_cp2_pp2_mb6", "dualpipev_plain_pp2_mb6",
    "dualpipev_pp4_mb10", "mindspore_db_1f1b_pp4_mb6", "vpp_pp4_v2_mb8",
]  # fmt: skip
TEXTS = ["mindspore_text_1f1b_pp4_mb4", "mindspore_text_nomstx_pp4_mb4"]
NUMBERS = ["microbatch", "chunk", "microbatch_b", "chunk_b"]


def load(folder: Path, **options: Any) -> Profile:
    """Everything in `folder` as one profile, not yet labelled."""
    profile, refused = merge(read(source, ReadOptions(**options)) for source in find(folder).sources)
    assert refused == []
    return profile.validate()


def with_details(profile: Profile, detail: Any, folder: Path) -> Profile:
    """With the device tasks of all ranks."""
    ranks = profile.ranks["rank"].to_list()
    found = with_tasks(Loaded(profile, ()), LoadOptions(folder, detail=detail, jobs=1), ranks, folder)
    assert found.failures == ()
    return found.profile


def understood(folder: Path, **options: Any) -> Profile:
    return labels.label(stages.resolve(load(folder, **options), Declared())).validate()


def truth_spans(folder: Path) -> pl.DataFrame:
    """The spans of truth.json as rows of model.SPANS; a block of the loss head counts as a backward."""
    ranks = json.loads((folder / "truth.json").read_text())["ranks"]
    rows = [
        {"rank": int(rank), "stage": told["stage"], **{c: span[c] for c in (*NUMBERS, "step", "start_ns", "end_ns")},
         "kind": "B" if span["kind"] == "L" else span["kind"]}
        for rank, told in ranks.items()
        for span in told["spans"]
    ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None).filter(pl.col("kind") != "OPT").sort("rank", "start_ns")


@pytest.mark.parametrize("name", DATABASES)
def test_cluster_equals_its_truth(shared: Path, name: str) -> None:
    folder = shared / "data" / "ascend" / name
    profile, truth = understood(folder), truth_spans(folder)
    spans = profile.spans.join(profile.ranks.select("rank", "stage"), on="rank").sort("rank", "start_ns")
    columns = ["rank", "stage", "kind", "start_ns", "end_ns", *NUMBERS]
    assert spans.select(columns).rows() == truth.select(columns).rows()
    pairs = pl.DataFrame({"ours": spans["step"], "theirs": truth["step"]}).unique()
    assert pairs.height == truth["step"].n_unique() == spans["step"].n_unique()
    assert [note for note in profile.notes if note.level == "warning"] == []


@pytest.mark.parametrize("name", [name for name in DATABASES if "levelnone" not in name] + TEXTS)
def test_messages_equal_the_truth(shared: Path, name: str) -> None:
    """Each transfer has its two sides: batched, without peers, and where one rank's capture begins late too."""
    folder = shared / "data" / "ascend" / name
    columns = ["src_rank", "dst_rank", "send_start_ns", "send_end_ns", "recv_start_ns", "recv_end_ns"]
    told = json.loads((folder / "truth.json").read_text())["messages"]
    wanted = {tuple(m[c] for c in columns) for m in told if None not in [m[c] for c in columns]}
    assert set(messages.pair(peers.fill(understood(folder))).messages.select(columns).rows()) == wanted


@pytest.mark.parametrize("name", ["1f1b_pp4_mb8", "mindspore_text_1f1b_pp4_mb4"])
def test_device_tasks_on_demand(shared: Path, tmp_path: Path, name: str) -> None:
    """All tasks but the markers themselves, by start; the optimizer is found among them."""
    folder = shared / "data" / "ascend" / name
    told = with_details(load(folder, optimizer=True), "kernels", tmp_path)
    truth = json.loads((folder / "truth.json").read_text())
    per_block = {"OPT": 20}
    assert [file.rank for file in told.kernels] == [0, 1, 2, 3]
    for file in told.kernels:
        tasks = pl.concat(list(task_batches(told, file.rank, rows=100)))
        assert tasks["start_ns"].is_sorted()
        blocks = truth["ranks"][str(file.rank)]["spans"]
        kernels = tasks.filter(pl.col("category") == "compute")
        counts = [per_block.get(block["kind"], truth["args"]["kernels"]) for block in blocks]
        assert [kernels["start_ns"].is_between(block["start_ns"], block["end_ns"]).sum() for block in blocks] == counts
        assert len(kernels) == sum(counts)
        optimizer = told.spans.filter((pl.col("rank") == file.rank) & (pl.col("kind") == "OPT"))
        wanted = [s for s in blocks if s["kind"] == "OPT"]
        assert len(optimizer) == len(wanted)
        for ours, block in zip(optimizer.sort("start_ns").to_dicts(), wanted, strict=True):
            assert 0 <= ours["start_ns"] - block["start_ns"] <= 5_000
            assert 0 <= block["end_ns"] - ours["end_ns"] <= 5_000
    communication = with_details(load(folder), "comm", tmp_path)
    for file in communication.kernels:
        assert pl.read_ipc(file.path)["category"].unique().to_list() == ["communication"]


@pytest.mark.parametrize("detail", ["comm", "kernels"])
def test_details_of_a_capture_without_device_tasks(shared: Path, tmp_path: Path, detail: str) -> None:
    """Level_none has markers only: the blocks are there, and no task below them."""
    folder = shared / "data" / "ascend" / "1f1b_levelnone_pp4_mb6"
    told = with_details(load(folder), detail, tmp_path)
    assert told.spans.height == truth_spans(folder).height
    assert [len(batch) for file in told.kernels for batch in task_batches(told, file.rank)] == []
