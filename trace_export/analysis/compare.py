"""Two runs, or two steps of one, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import polars as pl

from trace_export.analysis.gate import Gate, judge
from trace_export.analysis.markdown import document
from trace_export.analysis.report_tables import Place, ReportTable
from trace_export.analysis.run_figures import RunFigures
from trace_export.analysis.verdict import Sentence
from trace_export.steps.idle import CAUSES
from trace_export.units import duration

ALIKE = 0.005
"""Times that differ by less are the same."""
NOTABLE = 0.05
"""A relative change above this is flagged."""
NOTABLE_IDLE = 0.01
"""Idle time that has changed by more than this share of a step is worth a sentence."""
OWN_CAUSES = (CAUSES["transfer"], CAUSES["late"])
SHARES = ("bubble (global)", "bubble (own window)")


@dataclass(frozen=True)
class Comparison:
    """A run A beside a run B, called `names`. `difference` is B - A, `change` is B / A - 1 (null for shares).

    `whole`: what, a, b, difference, change: the times of a step and its idle parts (nanoseconds, medians over steps of
    the mean over ranks) and both bubbles (shares). `blocks`: stage, kind, chunk, a_blocks, b_blocks, a_ns, b_ns (median
    durations), difference, change, the largest change first; a row is null on the side that does not have it. `gate`:
    whether B is worse than A by more than was allowed, where a limit was given.
    """

    names: tuple[str, str]
    whole: pl.DataFrame
    blocks: pl.DataFrame
    gate: Gate | None = None

    def json(self) -> str:
        """Everything, as one JSON document."""
        from trace_export.analysis.compare_document import compare_document
        from trace_export.documents import encode

        return encode(compare_document(self))

    @property
    def verdict(self) -> tuple[Sentence, ...]:
        """What has changed, in a few sentences; first that of the gate."""
        gate = [] if self.gate is None else [Sentence("gate", asdict(self.gate), self.gate.sentence)]
        return (*gate, *_sentences(self))

    def markdown(self) -> str:
        """The comparison as Markdown, such as for a comment."""
        a, b = self.names
        return document(f"{a} and {b}", "", self.verdict, self.tables())

    def tables(self) -> list[ReportTable]:
        """The comparison as people read it: ms and %, differences of shares in points."""
        a, b = self.names
        ms = [(pl.col(f"{side}_ns") / 1e6).round(3).alias(f"{name} ms") for side, name in (("a", a), ("b", b))]
        blocks = self.blocks.select(
            "stage", "kind", "chunk", pl.col("a_blocks").alias(f"{a} blocks"), pl.col("b_blocks").alias(f"{b} blocks"),
            *ms, (pl.col("change") * 100).round(2).alias("change %"),
        )  # fmt: skip
        one_chunk = self.blocks["chunk"].fill_null(0).n_unique() < 2
        rows = self.blocks["change"].abs().fill_null(0) > NOTABLE
        flagged = {row: Place(self.blocks["stage"][row]) for row in rows.arg_true()}
        return [
            ReportTable("Steps", self._whole_rows(), "medians over the steps; idle parts are means over the ranks"),
            ReportTable(
                "Blocks", blocks.drop("chunk") if one_chunk else blocks, "median durations; largest change first",
                flagged, (f"{a} blocks", f"{b} blocks"),
            ),
        ]  # fmt: skip

    def _whole_rows(self) -> pl.DataFrame:
        share = pl.col("what").is_in(SHARES)

        def shown(column: str, sign: str) -> pl.Series:
            rows = self.whole.select(column, share).rows()
            texts = [
                None if value is None
                else f"{_rounded(100 * value):{sign}.2f} {'points' if sign else '%'}" if is_share
                else f"{_rounded(value / 1e6):{sign}.2f} ms"
                for value, is_share in rows
            ]  # fmt: skip
            return pl.Series(texts, dtype=pl.String)

        a, b = self.names
        return pl.DataFrame(
            {
                "": self.whole["what"], a: shown("a", ""), b: shown("b", ""), "difference": shown("difference", "+"),
                "change %": (self.whole["change"] * 100).round(2),
            }
        )  # fmt: skip


def compare(
    a: RunFigures, b: RunFigures, names: tuple[str, str] = ("A", "B"), limit: float | None = None, on: str = "step"
) -> Comparison:
    """The differences of two runs; with a `limit` also whether B is worse by more, see `gate.judge`."""
    gate = None if limit is None else judge(a, b, limit, on, names)
    difference = pl.col("b") - pl.col("a")
    change = pl.when(~pl.col("what").is_in(SHARES)).then(pl.col("b") / pl.when(pl.col("a") != 0).then("a") - 1)
    whole = (
        a.whole.rename({"value": "a"})
        .join(b.whole.rename({"value": "b"}), on="what", maintain_order="left")
        .with_columns(difference=difference, change=change)
    )
    sides = [run.blocks.rename({"blocks": f"{s}_blocks", "median_ns": f"{s}_ns"}) for s, run in (("a", a), ("b", b))]
    key = ["stage", "kind", "chunk"]
    blocks = sides[0].join(sides[1], on=key, how="full", coalesce=True, nulls_equal=True)
    longer = pl.col("b_ns") - pl.col("a_ns")
    slower = pl.col("b_ns") / pl.when(pl.col("a_ns") != 0).then("a_ns") - 1
    order = blocks.with_columns(difference=longer, change=slower).sort(
        pl.col("change").abs().round(4), *key, descending=[True, False, False, False], nulls_last=True
    )
    return Comparison(
        names,
        whole.filter((pl.col("a") != 0) | (pl.col("b") != 0)),
        order.select(*key, "a_blocks", "b_blocks", "a_ns", "b_ns", "difference", "change"),
        gate,
    )


def _rounded(value: float) -> float:
    """To two digits, and without the sign of a negative zero."""
    return round(value, 2) + 0.0


def _sentences(comparison: Comparison) -> Iterator[Sentence]:
    a, b = comparison.names
    figures = {row["what"]: row for row in comparison.whole.iter_rows(named=True)}
    time = figures.get("step time") or figures.get("pipeline time")
    if time is None or time["change"] is None:
        return
    much = f"{duration(abs(time['difference']))} ({abs(time['change']):.1%})"
    how = "more" if time["difference"] > 0 else "less"
    text = f"The {time['what']} is {duration(time['b'])} in {b}, {much} {how} than in {a}"
    if abs(time["change"]) < ALIKE:
        text = f"The {time['what']} is the same in {a} and {b} within {ALIKE:.1%}: {duration(time['b'])}"
    if (bubble := figures.get(SHARES[0])) is not None and bubble["difference"] is not None:
        points = f" instead of {bubble['a']:.1%} ({100 * bubble['difference']:+.1f} points)"
        text += f"; the bubble is {bubble['b']:.1%}{points if abs(bubble['difference']) >= 0.0005 else ' in both'}"
    yield Sentence("difference", {**time, "bubble": bubble and bubble["difference"]}, f"{text}.")
    changed = comparison.blocks.filter(pl.col("change").abs() > NOTABLE)
    yield from _idle(comparison, time["b"])
    if changed.is_empty():
        yield Sentence("no-block-changed", {}, f"No kind of block on any stage has changed by more than {NOTABLE:.0%}.")
        return
    cost = pl.col("difference") * pl.min_horizontal("a_blocks", "b_blocks")
    explains = (cost > 0) == (time["difference"] > 0) if abs(time["change"]) >= ALIKE else pl.lit(True)
    row = changed.with_columns(explains=explains).sort("explains", cost.abs(), descending=True)
    most = row.drop("explains").row(0, named=True)
    chunk = f", chunk {most['chunk']}" if most["chunk"] else ""
    times = f"{duration(most['a_ns'])} in {a}, {duration(most['b_ns'])} in {b} ({most['change']:+.1%})"
    how = "longer" if time["difference"] > 0 else "less time"
    nothing = "" if row["explains"][0] else f"No kind of block takes {how}, so blocks do not explain it. "
    text = f"{nothing}Largest change: {most['kind']} on stage {most['stage']}{chunk}: {times}."
    yield Sentence("largest-change", most, text)


def _idle(comparison: Comparison, step: float) -> Iterator[Sentence]:
    """The idle time with a cause of its own (waits for other ranks have theirs elsewhere) that has changed most."""
    own = comparison.whole.filter(pl.col("what").is_in(OWN_CAUSES)).sort(pl.col("difference").abs(), descending=True)
    for row in own.head(1).iter_rows(named=True):
        if abs(row["difference"]) < NOTABLE_IDLE * step:
            return
        a, b = comparison.names
        times = f"{duration(row['a'])} in {a}, {duration(row['b'])} in {b}"
        text = f"Idle on average of the ranks by {row['what']}: {times} a step; report says on which ranks."
        yield Sentence("idle-changed", row, text)
