"""The forwards, backwards and weight gradients that blocks run: an overlapped pair (FB) runs a forward and a backward.

This is the one place that says so, for the blocks of a run and for those of a schedule.
"""

from __future__ import annotations

import numpy as np
import polars as pl

FORWARDS, BACKWARDS, PAIRS = (pl.col("kind").is_in(kinds) for kinds in (["F", "FB"], ["B", "FB"], ["FB"]))
"""Whether a block of this `kind` runs a forward, a backward, both."""


def split_pairs(blocks: pl.DataFrame) -> pl.DataFrame:
    """A row for each pass of `blocks` (kind F, B, W, FB; microbatch, chunk and a pair's microbatch_b and chunk_b, and
    whatever else): those of a pair are its forward, then its backward, and else like the pair. Without microbatch_b and
    chunk_b. The rows stand in the order of the blocks."""
    of_backward = ["microbatch_b", "chunk_b"]
    plain = blocks.drop(of_backward)
    pairs = blocks.select(PAIRS).to_series()
    if not pairs.any():
        return plain
    kind = blocks["kind"].dtype
    forward = plain.with_columns(kind=pl.when(PAIRS).then(pl.lit("F", kind)).otherwise("kind"))
    backward = (
        blocks.filter(pairs).drop("microbatch", "chunk").rename({"microbatch_b": "microbatch", "chunk_b": "chunk"})
    )
    backward = backward.with_columns(kind=pl.lit("B", kind)).select(plain.columns)
    block = np.concatenate([np.arange(len(plain)), pairs.arg_true().to_numpy()])
    return pl.concat([forward, backward])[np.argsort(block, kind="stable")]
