"""Ascend and MindSpore profiles: every generated cluster equals its truth, to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from trace_export.model import Declared, Profile
from trace_export.pipeline import labels, topology
from trace_export.sources import read
from trace_export.sources.find import find
from trace_export.sources.merge import merge
from trace_export.sources.source import ReadOptions

DATABASES = [
    "1f1b_batchsendrecv_pp4_mb6", "1f1b_clipped_pp2_mb6", "1f1b_level0_pp2_mb4", "1f1b_levelnone_pp4_mb6",
    "1f1b_pp4_mb8", "1f1b_tp_pp_dp_order_pp2_dp2", "dualpipev_cp2_pp2_mb6", "dualpipev_plain_pp2_mb6",
    "dualpipev_pp4_mb10", "mindspore_db_1f1b_pp4_mb6", "vpp_pp4_v2_mb8",
]  # fmt: skip
NUMBERS = ["microbatch", "chunk", "microbatch_b", "chunk_b"]


def load(folder: Path, **options: Any) -> Profile:
    """Everything in `folder` as one profile, not yet labelled."""
    profile, refused = merge(read(source, ReadOptions(**options)) for source in find(folder).sources)
    assert refused == []
    return profile.validate()


def understood(folder: Path, **options: Any) -> Profile:
    return labels.label(topology.resolve(load(folder, **options), Declared())).validate()


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
