"""Two runs, or two steps of one, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import orjson
import polars as pl

from trace_export.analysis import bubbles
from trace_export.analysis.bubbles import CAUSES
from trace_export.analysis.report_tables import ReportTable
from trace_export.analysis.whole_steps import of_whole_steps
from trace_export.model import STEP_KEY, WORK_KINDS, Profile


@dataclass(frozen=True)
class Comparison:
    """A run A beside a run B; `change` is B / A - 1.

    `whole`: what, a, b, change: the step time and its idle parts (nanoseconds, medians over steps of the mean over
    ranks) and both bubbles (shares). `blocks`: stage, kind, chunk, a_blocks, b_blocks, a_ns, b_ns (median durations),
    change; a row is null on the side that does not have it.
    """

    whole: pl.DataFrame
    blocks: pl.DataFrame

    def json(self) -> str:
        """Everything, as one JSON document."""
        document = {"whole": self.whole.to_dicts(), "blocks": self.blocks.to_dicts()}
        return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()

    def tables(self) -> list[ReportTable]:
        """The comparison as people read it: ms and %."""
        share = pl.col("what").str.starts_with("bubble")
        whole = self.whole.select(
            "what",
            *(
                pl.when(share).then(pl.format("{} %", (pl.col(c) * 100).round(2)))
                .otherwise(pl.format("{} ms", (pl.col(c) / 1e6).round(3))).alias(c)
                for c in ("a", "b")
            ),
            (pl.col("change") * 100).round(2).alias("change %"),
        )  # fmt: skip
        blocks = self.blocks.select(
            "stage", "kind", "chunk", "a_blocks", "b_blocks",
            (pl.col("a_ns") / 1e6).round(3).alias("a ms"), (pl.col("b_ns") / 1e6).round(3).alias("b ms"),
            (pl.col("change") * 100).round(2).alias("change %"),
        )  # fmt: skip
        return [
            ReportTable("Steps", whole, "medians over the steps; idle parts are means over the ranks"),
            ReportTable("Blocks", blocks, "median durations"),
        ]


def compare(a: Profile, b: Profile) -> Comparison:
    """The differences of two profiles that have been interpreted and aligned, of their whole steps."""
    a, b = of_whole_steps(a), of_whole_steps(b)
    change = pl.col("b") / pl.when(pl.col("a") != 0).then("a") - 1
    whole = (
        _run_figures(a)
        .rename({"value": "a"})
        .join(_run_figures(b).rename({"value": "b"}), on="what", maintain_order="left")
    )
    sides = [_blocks(p).rename({"blocks": f"{s}_blocks", "median_ns": f"{s}_ns"}) for s, p in (("a", a), ("b", b))]
    key = ["stage", "kind", "chunk"]
    blocks = sides[0].join(sides[1], on=key, how="full", coalesce=True, nulls_equal=True).sort(*key, nulls_last=True)
    slower = pl.col("b_ns") / pl.when(pl.col("a_ns") != 0).then("a_ns") - 1
    return Comparison(
        whole.with_columns(change=change).filter((pl.col("a") != 0) | (pl.col("b") != 0)),
        blocks.with_columns(change=slower).select(*key, "a_blocks", "b_blocks", "a_ns", "b_ns", "change"),
    )


def _run_figures(profile: Profile) -> pl.DataFrame:
    """what, value: a run in a few numbers."""
    ranks = bubbles.rank_bubbles(profile)
    steps = bubbles.step_shares(ranks)
    parts = ranks.group_by(STEP_KEY).agg(pl.col("busy_ns", *(f"{c}_ns" for c in CAUSES)).mean())
    rows = [("step time", (steps["end_ns"] - steps["start_ns"]).median()), ("busy", parts["busy_ns"].median())]
    rows += [("bubble (global)", steps["bubble"].median()), ("bubble (own window)", steps["bubble_own"].median())]
    rows += [(name, parts[f"{cause}_ns"].median()) for cause, name in CAUSES.items()]
    return pl.DataFrame(rows, schema={"what": pl.String, "value": pl.Float64}, orient="row")


def _blocks(profile: Profile) -> pl.DataFrame:
    """stage, kind, chunk, blocks, median_ns."""
    placed = profile.spans.filter(pl.col("kind").is_in([*WORK_KINDS, "OPT"])).join(
        profile.ranks.select("rank", "stage"), on="rank"
    )
    return placed.group_by("stage", "kind", "chunk").agg(
        blocks=pl.len(), median_ns=(pl.col("end_ns") - pl.col("start_ns")).median()
    )
