"""The options whose values are drawn together, for each command, and the blocks that a selection leaves."""

import polars as pl

from tests.pairs.covering import Row

Values = tuple[str | None, ...]
"""What an option may be given; None: it is left out, '': it is a flag."""

OFFSET_MS = -3
SELECTION: dict[str, Values] = {
    "--steps": (None, "0", "1-2"),
    "--stages": (None, "0", "1"),
    "--ranks": (None, "0-1", "all"),
    "--time": (None, "30ms-90ms"),
}
READING: dict[str, Values] = {
    "--align": ("none", "auto", "wall"),
    "--jobs": (None, "1", "2"),
    "--run": (None, "all"),
    "--infer": (None, "off"),
}
EXPORT: dict[str, Values] = {
    **SELECTION,
    **READING,
    "--detail": (None, "comm", "kernels"),
    "--tracks": (None, "rank"),
    "--color-by": (None, "microbatch", "rank", "none"),
    "--bubbles": (None, ""),
    "--model": (None, ""),
    "--critical-path": (None, ""),
    "--max-slices": (None, "70"),
    "--first-microbatch": (None, "1"),
    "--gzip": (None, ""),
    "--offset": (None, f"{{host}}={OFFSET_MS}ms"),
}
REPORT: dict[str, Values] = {**SELECTION, **READING}
PICTURE: dict[str, Values] = {
    **SELECTION,
    "--align": ("none", "auto"),
    "--offset": (None, f"{{host}}={OFFSET_MS}ms"),
    "--tracks": (None, "rank"),
    "--color-by": (None, "microbatch", "rank", "none"),
    "--bubbles": (None, ""),
    "--model": (None, ""),
    "--critical-path": (None, ""),
    "--theme": (None, "light", "print", "grayscale", "colorblind"),
    "--width": (None, "120mm", "180mm"),
    "--legend": (None, "below", "none"),
    "--title": (None, "A & B <c>"),
    "--first-microbatch": (None, "1"),
    "--letters": (None, ""),
}
ELSEWHERE = {
    "--cache",
    "--log_dir", "--follow-links", "--host", "--multi_machine", "--columns", "--marker", "--pp", "--tp", "--dp",
    "--cp", "--devices", "--replica", "--format", "--out", "--force", "--table", "--step-task-info", "--in-place",
    "--no-legend", "--figure-steps", "--range", "--no-letters", "--source", "--help-all", "--at",
    "--max-clock-error", "--scheduler", "--quiet", "--verbose", "--debug", "--strict", "--json",
}  # fmt: skip
"""Options that are given in every run or by the tests of what they choose."""


def words(row: Row, options: dict[str, Values], host: str) -> list[str]:
    """The words of the command line that the row gives."""
    given = [(name, row[name]) for name in options if row[name] is not None]
    return [word.format(host=host) for name, value in given for word in (name, *([value] if value else []))]


def numbers(value: str | None) -> set[int] | None:
    """The numbers of a list such as "1-2"; None: all."""
    if value in (None, "all"):
        return None
    low, _, high = value.partition("-")
    return set(range(int(low), int(high or low) + 1))


def asked(row: Row) -> bool:
    """Whether the options of a row go together."""
    return not (row.get("--offset") and row["--align"] != "none")


def window(truth: pl.DataFrame, row: Row) -> tuple[int, int] | None:
    """The window of time that the row selects; it counts from the first block read."""
    if not row["--time"] or truth.is_empty():
        return None
    start, end = (int(part.removesuffix("ms")) * 1_000_000 for part in row["--time"].split("-"))
    zero: int = read(truth, row)["start_ns"].min()  # type: ignore[assignment]
    return zero + start, zero + end


def read(truth: pl.DataFrame, row: Row) -> pl.DataFrame:
    """The blocks of the ranks that are read, hosts moved as the row says."""
    ranks = numbers(row["--ranks"])
    blocks = truth if ranks is None else truth.filter(pl.col("rank").is_in(ranks))
    if row.get("--offset"):
        moved = pl.when("first_host").then(OFFSET_MS * 1_000_000).otherwise(0)
        blocks = blocks.with_columns(pl.col("start_ns", "end_ns") + moved)
    return blocks


def left(truth: pl.DataFrame, row: Row) -> pl.DataFrame:
    """The blocks of `truth` that the row's selection leaves."""
    blocks = read(truth, row)
    if (part := window(truth, row)) is not None:
        blocks = blocks.filter((pl.col("start_ns") < part[1]) & (pl.col("end_ns") > part[0]))
    for column, option in (("step", "--steps"), ("stage", "--stages")):
        wanted = numbers(row[option])
        blocks = blocks if wanted is None else blocks.filter(pl.col(column).is_in(wanted))
    return blocks


def cut(blocks: pl.DataFrame, truth: pl.DataFrame, row: Row) -> pl.DataFrame:
    """`blocks` as a picture has them: cut at the window of time."""
    part = window(truth, row)
    return blocks if part is None else blocks.with_columns(pl.col("start_ns", "end_ns").clip(*part))
