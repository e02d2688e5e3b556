"""Ascend and MindSpore: clusters of another generator with what the reference tool made of them, and real captures."""

import json
from pathlib import Path

import polars as pl
import pytest

from tests.sources.ascend.test_reader import NUMBERS, load, understood
from trace_export.writers import step_task_info

DATABASES = [
    "1f1b_batchsendrecv_pp4_mb6", "1f1b_clipped_pp2_mb6", "1f1b_level0_pp2_mb4", "1f1b_levelnone_pp4_mb6",
    "1f1b_pp4_mb8", "1f1b_tp_pp_dp_order_pp2_dp2", "dualpipev_cp2_pp2_mb6", "dualpipev_plain_pp2_mb6",
    "dualpipev_pp4_mb10", "mindspore_db_1f1b_pp4_mb6", "vpp_pp4_v2_mb8",
]  # fmt: skip
TEXTS = ["mindspore_text_1f1b_pp4_mb4", "mindspore_text_nomstx_pp4_mb4"]


def truth_spans(folder: Path) -> pl.DataFrame:
    """The spans of truth.json as rows of model.SPANS; a block of the loss head counts as a backward."""
    ranks = json.loads((folder / "truth.json").read_text())["ranks"]
    rows = [
        {"rank": int(rank), "stage": truth["stage"], **{c: span[c] for c in (*NUMBERS, "step", "start_ns", "end_ns")},
         "kind": "B" if span["kind"] == "L" else span["kind"]}
        for rank, truth in ranks.items()
        for span in truth["spans"]
    ]  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None).filter(pl.col("kind") != "OPT").sort("rank", "start_ns")


@pytest.mark.parametrize("name", DATABASES)
def test_cluster_equals_its_truth(recorded: Path, name: str) -> None:
    folder = recorded / "ascend" / name
    profile, truth = understood(folder), truth_spans(folder)
    spans = profile.spans.join(profile.ranks.select("rank", "stage"), on="rank").sort("rank", "start_ns")
    columns = ["rank", "stage", "kind", "start_ns", "end_ns", *NUMBERS]
    assert spans.select(columns).rows() == truth.select(columns).rows()
    pairs = pl.DataFrame({"ours": spans["step"], "theirs": truth["step"]}).unique()
    assert pairs.height == truth["step"].n_unique() == spans["step"].n_unique()
    assert [note for note in profile.notes if note.level == "warning"] == []


@pytest.mark.parametrize("name", [name for name in DATABASES if "levelnone" not in name] + TEXTS)
def test_messages_equal_the_truth(recorded: Path, name: str) -> None:
    """Each transfer has its two sides: batched, without peers, and where one rank's capture begins late too."""
    folder = recorded / "ascend" / name
    columns = ["src_rank", "dst_rank", "send_start_ns", "send_end_ns", "recv_start_ns", "recv_end_ns"]
    truth = json.loads((folder / "truth.json").read_text())["messages"]
    wanted = {tuple(m[c] for c in columns) for m in truth if None not in [m[c] for c in columns]}
    assert set(understood(folder).messages.select(columns).rows()) == wanted


def test_real_capture_without_markers(recorded: Path) -> None:
    """PP=2 x DP=2 of Qwen3: the order of blocks, and each block's core inside ours; roles of the batched transfers."""
    folder = recorded / "ascend" / "real" / "qwen3_pp2_dp2_level2"
    expected = json.loads((folder / "expected.json").read_text())
    profile = understood(folder)
    assert dict(profile.ranks.select("rank", "stage").iter_rows()) == {
        int(rank): stage for rank, stage in expected["stage_of_rank"].items()
    }
    assert dict(profile.ranks.select("rank", "device").iter_rows()) == {
        int(rank): device for rank, device in expected["device_of_rank"].items()
    }
    for rank, blocks in expected["spans"].items():
        ours = profile.spans.filter(pl.col("rank") == int(rank)).sort("start_ns").to_dicts()
        assert [(b["kind"], b["microbatch"]) for b in ours] == [(b["kind"], b["microbatch"]) for b in blocks]
        for block, core in zip(ours, blocks, strict=True):
            assert block["start_ns"] <= core["start_ns"]
            assert core["end_ns"] <= block["end_ns"]
    wanted = set()
    for message in expected["p2p"]:
        sequence = int(message["op"].split("_")[-2])
        wanted |= {(message["src_rank"], "send", message["dst_rank"], sequence)}
        wanted |= {(message["dst_rank"], "recv", message["src_rank"], sequence)}
    sides = profile.p2p.select("rank", "role", "peer", "sequence").rows()
    parted = {(r, one, p, o) for r, role, p, o in sides for one in (("send", "recv") if role == "both" else (role,))}
    assert parted == wanted


@pytest.mark.parametrize("name", ["resnet_dp8_level0", "resnet_dp8_level1", "resnet_dp8_level1_text"])
def test_capture_without_a_pipeline_has_no_blocks(recorded: Path, name: str) -> None:
    profile = load(recorded / "ascend" / "real" / name)
    assert profile.spans.is_empty()
    assert all("no pipeline blocks" in note.text for note in profile.notes)
    assert profile.collectives.group_by("rank").len()["len"].unique().to_list() == [4]


def test_real_communication_and_counters(recorded: Path) -> None:
    real = recorded / "ascend" / "real"
    for truth in json.loads((real / "expected_resnet.json").read_text()):
        profile = load(real / truth["file"].split("/")[0])
        rank = truth["rank_device"][0][0]
        ours = profile.collectives.filter(pl.col("rank") == rank).select("sequence", "start_ns", "end_ns").rows()
        assert ours == [(int(op.split("_")[-2]), start, end) for op, start, end in truth["comm"]]
        assert profile.hosts["label"].to_list() == [truth["host"][0][1]]
        assert "AI Core frequency" in profile.counters["name"]


RIGHT = [
    "1f1b_batchsendrecv_pp4_mb6", "1f1b_clipped_pp2_mb6", "1f1b_level0_pp2_mb4", "1f1b_levelnone_pp4_mb6",
    "1f1b_pp4_mb8", "1f1b_tp_pp_dp_order_pp2_dp2", "dualpipev_pp4_mb10", "mindspore_db_1f1b_pp4_mb6",
    "vpp_pp4_v2_mb8",
]  # fmt: skip
"""The clusters whose blocks the reference names right."""


@pytest.mark.parametrize("name", RIGHT)
def test_rows_equal_the_reference(recorded: Path, name: str) -> None:
    folder = recorded / "ascend" / name
    rows = step_task_info.rows(understood(folder))
    for rank, reference in json.loads((folder / "reference.json").read_text()).items():
        ours = rows.filter(pl.col("rank") == int(rank)).drop("rank").rows()
        assert ours == [tuple(row) for row in reference["StepTaskInfo"]]


def test_names_where_the_reference_is_wrong(recorded: Path) -> None:
    """Context parallel ranks: the truth has the names that the reference should have written."""
    folder = recorded / "ascend" / "dualpipev_cp2_pp2_mb6"
    rows = step_task_info.rows(understood(folder))
    for rank, truth in json.loads((folder / "truth.json").read_text())["ranks"].items():
        ours = rows.filter(pl.col("rank") == int(rank)).drop("rank").rows()
        blocks = [s for s in truth["spans"] if s["kind"] != "OPT"]
        assert ours == [(s["ref_name"], s["start_ns"], s["end_ns"], s["ref_type"]) for s in blocks]
