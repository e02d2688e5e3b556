"""Names of blocks and of their kinds, the same in every format."""

from __future__ import annotations

import polars as pl

KIND_LABELS = {
    "F": "forward",
    "B": "backward",
    "W": "weight gradient",
    "FB": "forward + backward, overlapped",
    "OPT": "optimizer",
    "": "other work",
}
"""The kinds of block in the order of a legend; "" is a block without kind."""


def has_chunks(spans: pl.DataFrame) -> bool:
    """Whether a rank holds more than one model chunk, so that names must include it."""
    highest = spans.select(pl.max_horizontal(pl.col("chunk", "chunk_b").max())).item()
    return highest is not None and highest > 0


def block_name(chunks: bool) -> pl.Expr:
    """`F3`, `F3.1` where there are `chunks`, `F5+B2`, `Optimizer`; a block without kind is called by its marker."""
    forward = _with_number(pl.lit("F"), "microbatch", "chunk", chunks)
    backward = _with_number(pl.lit("B"), "microbatch_b", "chunk_b", chunks)
    return (
        pl.when(pl.col("kind").is_null())
        .then(pl.col("marker").fill_null("block"))
        .when(pl.col("kind") == "OPT")
        .then(pl.lit("Optimizer"))
        .when(pl.col("kind") == "FB")
        .then(pl.concat_str(forward, pl.lit("+"), backward))
        .otherwise(_with_number(pl.col("kind"), "microbatch", "chunk", chunks))
        .alias("name")
    )


def _with_number(letter: pl.Expr, microbatch: str, chunk: str, chunks: bool) -> pl.Expr:
    number = pl.col(microbatch).cast(pl.String).fill_null("")
    tail = pl.format(".{}", pl.col(chunk)).fill_null("") if chunks else pl.lit("")
    return pl.concat_str(letter, number, tail)
