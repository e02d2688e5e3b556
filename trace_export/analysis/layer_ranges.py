"""The layers of each part, counted by the ranges of the host that name them and begin inside a forward on the host.

Readers give such ranges as other named work beside the blocks when `RULES` are among the rules of the user. A backward
that computes its forward again repeats them, on the thread of the autograd engine, and inside its own range.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import Profile

SPELLINGS = (
    ("FSDP::pre_forward", r"FSDP::pre_forward \((?P<layer>.*?\b(?:layers|blocks|h)\.[0-9]+)(?:\.[^)]*)?\)"),
    ("MFSDP … forward", r"MFSDP (?P<layer>.*?\blayers\.[0-9]+)(?:\.\S+)? forward"),
    ("layer_…f", r"(?P<layer>layer_[0-9]+f)(?:-layer_[0-9]+b)?"),
    ("nn.Module", r"nn\.Module: (?P<layer>\w*(?:TransformerLayer|DecoderLayer)_[0-9]+)"),
    ("self_attention", r"(?P<layer>(?:.*\.)?self_attention)"),
)
"""Ranges around a `layer`: those of FSDP2, Megatron-FSDP, Megatron-LM with forwards and backwards overlapped, frames of
PyTorch's modules, and Megatron-LM's attention, which alone does not number them."""
RULES = tuple(f"{pattern.replace('?P<layer>', '?:')}=>OTHER" for _, pattern in SPELLINGS)
"""The rules of the user that ask a reader for these ranges."""


def apart(profile: Profile) -> tuple[Profile, pl.DataFrame]:
    """The profile without its other named work, and this: rank, start_ns, marker."""
    other = pl.col("kind").is_null()
    ranges = profile.spans.filter(other).select("rank", "start_ns", pl.col("marker").cast(pl.String))
    return replace(profile, spans=profile.spans.filter(~other)), ranges


def layers(blocks: pl.DataFrame, ranges: pl.DataFrame) -> tuple[tuple[int, ...], str] | None:
    """The layers of each part (chunk a on stage b is part a·P + b) and by what ranges they were counted: the most
    frequent number in the forwards of a part, by the first spelling that names the same one kind of layer in all parts;
    an encoder or layers that predict further tokens are other kinds. None where there is none, or where forwards of a
    rank overlap.

    `blocks`: rank, stage, chunk, start_ns, end_ns of forwards on the host. `ranges`: see `apart`."""
    here = blocks.with_columns(pl.col("chunk").fill_null(0)).sort("start_ns").with_row_index("block")
    if here.select((pl.col("start_ns") < pl.col("end_ns").shift().over("rank")).any()).item():
        return None
    inside = ranges.sort("start_ns").join_asof(here, on="start_ns", by="rank", check_sortedness=False)
    inside = inside.filter(pl.col("start_ns") < pl.col("end_ns"))
    for name, pattern in SPELLINGS:
        layer = pl.col("marker").str.extract(f"^{pattern}(?:,.*)?$").alias("layer")
        of = inside.select("block", "start_ns", layer).drop_nulls()
        of = of.with_columns(like=pl.col("layer").str.replace("[0-9]+f?$", ""))
        each_start = pl.when(pl.col("like") == pl.col("layer")).then("start_ns")
        counts = of.group_by("like", "block").agg(n=pl.struct("layer", each_start).n_unique())
        each = here.join(counts.select("like").unique(), how="cross").join(counts, on=["like", "block"], how="left")
        parts = each.group_by("like", "chunk", "stage").agg(pl.col("n").fill_null(0).mode().max())
        held = parts.filter((pl.col("n").min() > 0).over("like")).sort("chunk", "stage")
        if held["like"].n_unique() == 1:
            return tuple(held["n"].to_list()), f"the ranges {name}"
    return None
