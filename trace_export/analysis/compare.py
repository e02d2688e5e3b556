"""Two runs, or two steps of one, side by side: how they differ, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from trace_export.analysis import cause_words
from trace_export.analysis.explanation import BAND, CAUSES, SAID
from trace_export.analysis.gate import Gate, differences, judge
from trace_export.analysis.markdown import document
from trace_export.analysis.predictions import came_true
from trace_export.analysis.report_tables import cause_and_place
from trace_export.analysis.run_figures import DEVICE, RunFigures
from trace_export.analysis.summary import OF_HOST
from trace_export.analysis.verdict import LEVELS, SMALL, UNSEEN
from trace_export.answer import Place, ReportTable, Sentence
from trace_export.model import TEXT, Schema
from trace_export.units import duration

ALIKE = 0.005
"""Times that differ by less are the same."""
NOTABLE = 0.05
"""A relative change above this is flagged."""
TELLS = 10
"""A relative change of this or more is that of a figure that is next to nothing in A, and is not shown."""
SHARES = ("bubble (global)", "bubble (own window)")
MAIN = ("step time", "pipeline time", "busy", SHARES[0])
"""These figures of a step are on the one screen even if they do not differ."""
ROWS_BRIEF = 6
"""At most this many rows that differ are in a table of the one screen."""
CAUSES_SAID = 3
"""At most this many sentences on causes are on the one screen."""
OTHER_BLOCKS = ("stages", "micro-batches", "chunks", "times")
"""If these differ, blocks may hold other layers, or micro-batches of another size."""
BACKWARDS = ("B", "W", "FB")
OTHER_PLACES = ("stages", "ranks")
"""If these differ, the number of a stage or rank does not say where it is in the other run."""

LEVELS_TITLE = "What the difference is made of"
PAUSE = "long-pause"
CHANGED = "cause-changed"
"""The code of the sentences on causes."""
ONLY = " only in "
"""Comes after a part of causes that hide one another in both runs, before the name of the one that has it."""
PLACE = ("code", "stage", "replica", "ranks", "hosts", "device", "src_rank", "dst_rank", "direction", "group", "parts")
VALUES = ("ratio", "late_ns", "gain_ns", "gain", "even_ns", "band")
CAUSE_DIFFERENCES: Schema = {
    **{name: CAUSES[name] for name in PLACE},
    "in_a": pl.Boolean(), "in_b": pl.Boolean(),
    **{f"{side}_{name}": CAUSES[name] for name in VALUES for side in "ab"},
    "difference": CAUSES["gain_ns"],
}  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A run A beside a run B, called `names`. `difference` is B - A, `change` is B / A - 1 (null for shares).

    `unlike`: what makes them incomparable, as "schedule: 1F1B and ZB-H1". `whole`: what, a, b, difference, change: the
    times of a step and its idle parts (nanoseconds, means) and both bubbles (shares). `levels`: level, a_ns, b_ns,
    difference: what each adds to a step; the differences sum up to that of the steps. `causes`: where (as in
    `Explanation.causes`), the other columns of these for a and b, and the difference of the gains, the largest first.
    `blocks`: stage, kind, chunk, a_blocks, b_blocks, a_ns, b_ns (mean lengths), difference, change, a_slowest,
    b_slowest (ranks), a_slowest_ns, b_slowest_ns, the largest difference first; a row is null on the side that does not
    have it, and blocks that are not alike have none. `predicted`: whether A's prediction came true (`predictions`),
    where there is one. `gains`: whether both runs give the gains of causes. `host_times`:
    whether both have times of the host. `gate`: whether B is worse than A by more than was allowed, where a limit was
    given. `inputs`: what was read of B, as words of a command.
    """

    names: tuple[str, str]
    unlike: tuple[str, ...]
    whole: pl.DataFrame
    levels: pl.DataFrame
    causes: pl.DataFrame
    blocks: pl.DataFrame
    predicted: Sentence | None = None
    gains: bool = True
    host_times: bool = False
    gate: Gate | None = None
    inputs: str = "DIR"

    def json(self) -> str:
        """Everything, as one JSON document."""
        from trace_export.analysis.compare_document import compare_document
        from trace_export.documents import encode

        return encode(compare_document(self))

    @property
    def verdict(self) -> tuple[Sentence, ...]:
        """What has changed and why, in a few sentences; first that of the gate."""
        gate = [] if self.gate is None else [Sentence("gate", asdict(self.gate), self.gate.sentence)]
        return (*gate, *(sentence.on(self.inputs) for sentence in _sentences(self)))

    @property
    def answer(self) -> tuple[Sentence, ...]:
        """The sentences of `verdict` that fit on a screen: of many causes the first ones."""
        changed = [sentence for sentence in self.verdict if sentence.code == CHANGED]
        return tuple(sentence for sentence in self.verdict if sentence not in changed[CAUSES_SAID:])

    def markdown(self, *, full: bool = False) -> str:
        """The comparison as Markdown, such as for a comment. `full`: with all sentences and tables."""
        a, b = self.names
        said, shown = (self.verdict, self.tables()) if full else (self.answer, self.brief())
        return document(f"{a} and {b}", "", said, shown)

    def brief(self) -> list[ReportTable]:
        """The tables of one screen: of each the rows that differ most. Tables in which nothing differs are left out."""
        step, size = _step(self.whole), pl.col("difference").abs()
        longest = 0.0 if step is None else max(step["a"], step["b"])
        main = self.whole["what"].is_in(MAIN).arg_true().to_list()
        frames = [
            (self.whole, ~pl.col("what").is_in((*MAIN, *SHARES)) & (size >= SMALL * longest), main),
            (self.levels, size >= SMALL * longest, [self.levels.height]),
            (self.causes, size.is_null() | (size >= SAID * longest), []),
            (self.blocks, pl.col("change").abs() >= ALIKE, []),
        ]
        shown = []
        for table, (frame, differs, always) in zip(self.tables(), frames, strict=True):
            rows = frame.with_row_index("row").filter(differs).sort(size, descending=True, maintain_order=True)["row"]
            if table.frame.height and (rows.len() or frame is self.whole):
                shown.append(table.part(sorted({*rows.head(ROWS_BRIEF), *always})))
        return shown

    def tables(self) -> list[ReportTable]:
        """The comparison as people read it: ms and %, differences of shares in points."""
        note = "means over the steps and the ranks"
        return [
            ReportTable("Steps", self._whole_rows(), note), self._level_table(), self._cause_table(),
            self._block_table(),
        ]  # fmt: skip

    def _sides(self, column: str, name: str = "ms") -> list[pl.Expr]:
        """A column of both runs, in ms."""
        return [
            (pl.col(f"{side}_{column}") / 1e6).alias(f"{run} {name}")
            for side, run in zip("ab", self.names, strict=True)
        ]

    def _level_table(self) -> ReportTable:
        title = LEVELS_TITLE
        if self.levels.is_empty():
            return ReportTable(title, pl.DataFrame(), "cannot be said: no step is whole in one of the runs")
        total = self.levels.select(pl.lit("a step").alias("level"), pl.col("a_ns", "b_ns", "difference").sum())
        levels = self.levels.with_columns(pl.col("level").replace_strict(LEVELS))
        frame = pl.concat([levels, total]).select("level", *self._sides("ns"), _ms("difference"))
        return ReportTable(
            title, frame, "what each level of report adds to a step; the differences add up to that of a step"
        )

    def _cause_table(self) -> ReportTable:
        if self.causes.is_empty():
            return ReportTable("Causes", pl.DataFrame(), "none in either run")
        there = [
            pl.when(pl.col(f"in_{side}")).then(pl.lit("yes")).otherwise(pl.lit("no")).alias(f"in {run}")
            for side, run in zip("ab", self.names, strict=True)
        ]
        gains = [*self._sides("gain_ns"), _ms("difference")]
        frame = self.causes.select(
            *cause_and_place(list(self.causes.iter_rows(named=True))), *(gains if self.gains else there)
        )
        note = (
            "ms: how much shorter a step would be without the cause, as in report; a cause that gains little or is"
            " uncertain has no row; gains do not add up"
        )
        return ReportTable("Causes", frame, note)

    def _block_table(self) -> ReportTable:
        a, b = self.names
        slowest = pl.col("b_slowest_ns") / pl.when(pl.col("a_slowest_ns") != 0).then("a_slowest_ns") - 1
        notable = pl.max_horizontal(pl.col("change").abs(), slowest.abs()).fill_null(0) > NOTABLE
        rows = self.blocks.select(notable.alias("notable"))["notable"]
        flagged = {row: Place(self.blocks["stage"][row]) for row in rows.arg_true()}
        frame = self.blocks.select(
            "stage", "kind", "chunk", pl.col("a_blocks").alias(f"{a} blocks"), pl.col("b_blocks").alias(f"{b} blocks"),
            *self._sides("ns"), (pl.col("change") * 100).alias("change %"),
            pl.col("a_slowest").alias(f"{a} slowest rank"), pl.col("b_slowest").alias(f"{b} slowest rank"),
            *self._sides("slowest_ns", "slowest ms"),
        )  # fmt: skip
        one_chunk = self.blocks["chunk"].fill_null(0).n_unique() < 2
        note = "mean lengths, and those of the slowest rank; largest difference first"
        if self.unlike:
            note += "; blocks that are not alike are left out"
        shown = frame.drop("chunk") if one_chunk else frame
        details = tuple(f"{run} {what}" for what in ("blocks", "slowest rank", "slowest ms") for run in (a, b))
        return ReportTable("Blocks", shown, note, flagged, details)

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
        change = pl.when(pl.col("change") < TELLS).then(100 * pl.col("change"))
        return pl.DataFrame(
            {
                "": self.whole["what"], a: shown("a", ""), b: shown("b", ""), "difference": shown("difference", "+"),
                "change %": self.whole.select(change.alias("change %")).to_series(),
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
        .filter((pl.col("a") != 0) | (pl.col("b") != 0))
    )
    levels, causes = _levels(a, b), _causes(a, b, names)
    return Comparison(
        names,
        tuple(differences(a, b)),
        whole,
        levels,
        causes,
        _blocks(a, b),
        came_true(a, b, names, causes, levels),
        a.gains and b.gains,
        DEVICE not in (a.traits["times"], b.traits["times"]),
        gate,
    )


def _unlike(a: RunFigures, b: RunFigures, traits: Sequence[str]) -> bool:
    return any(a.traits[trait] != b.traits[trait] for trait in traits)


def _levels(a: RunFigures, b: RunFigures) -> pl.DataFrame:
    """The difference of the levels; none where a run has none."""
    order = pl.DataFrame({"level": list(LEVELS)}, schema={"level": TEXT})
    sides = [
        run.levels.select("level", adds_ns="adds_ns").rename({"adds_ns": f"{s}_ns"}) for s, run in (("a", a), ("b", b))
    ]
    levels = order.join(sides[0], on="level", how="left", maintain_order="left")
    levels = levels.join(sides[1], on="level", how="left", maintain_order="left")
    levels = levels.filter(pl.any_horizontal(pl.col("a_ns", "b_ns").is_not_null()))
    if any(side.is_empty() for side in sides):
        levels = levels.clear()
    levels = levels.with_columns(pl.col("a_ns", "b_ns").fill_null(0.0))
    return levels.with_columns(difference=pl.col("b_ns") - pl.col("a_ns"))


def _causes(a: RunFigures, b: RunFigures, names: tuple[str, str]) -> pl.DataFrame:
    """The causes of both runs, in one row if they are at the same place; those that hide one another, if some are.
    Every run has some pause between steps: if one names it, both have that of their levels. Every run has some
    optimizer: levels and blocks have the difference."""
    apart, rows = _unlike(a, b, OTHER_PLACES), dict[tuple[object, ...], dict[str, Any]]()
    for side, run in (("a", a), ("b", b)):
        for cause in run.causes.filter(pl.col("code") != "long-optimizer").iter_rows(named=True):
            named = ("device", "parts") if cause["code"].endswith("-host") else ("device", "parts", "hosts")
            where = ["code"] if cause["parts"] else [name for name in PLACE if name not in named]
            key = (side if apart and cause["code"] != PAUSE else "", *(str(cause[name]) for name in where))
            row = rows.setdefault(key, {name: cause[name] for name in PLACE} | {"in_a": False, "in_b": False})
            row["hosts"] = cause["hosts"] if row["hosts"] == cause["hosts"] else []
            row["device"] = cause["device"] if row["device"] == cause["device"] else None
            if cause["parts"]:
                row |= _together(row, cause, names)
            row |= {f"in_{side}": True} | {f"{side}_{name}": cause[name] for name in VALUES}
    for row in rows.values():
        if row["code"] == PAUSE:
            for side, run in (("a", a), ("b", b)):
                row |= _pause(side, run.levels)
        gains = [row.get(f"{side}_gain_ns") or 0.0 for side in "ab"]
        row["difference"] = gains[1] - gains[0] if a.gains and b.gains else None
    ordered = sorted(rows.items(), key=lambda item: (-abs(item[1]["difference"] or 0.0), item[0][1:]))
    return pl.DataFrame([row for _, row in ordered], schema=CAUSE_DIFFERENCES)


def _together(one: dict[str, Any], other: dict[str, Any], names: tuple[str, str]) -> dict[str, Any]:
    """The place of causes that hide one another in two runs: the parts that both have, and what only one has."""
    same = {name: one[name] if one[name] == other[name] else None for name in PLACE if name not in ("ranks", "hosts")}
    parts = [part for part in one["parts"] if part in other["parts"]]
    for (here, there), name in zip(((one, other), (other, one)), names, strict=True):
        parts += [f"{part}{ONLY}{name}" for part in here["parts"] if part not in there["parts"]]
    return same | {"ranks": sorted({*one["ranks"], *other["ranks"]}), "parts": parts}


def _pause(side: str, levels: pl.DataFrame) -> dict[str, object]:
    """The values of a run's pause between steps."""
    return {
        name: value
        for adds, share in levels.filter(pl.col("level") == "pause").select("adds_ns", "share").rows()
        for name, value in (
            (f"in_{side}", True), (f"{side}_late_ns", adds), (f"{side}_gain_ns", adds), (f"{side}_gain", share),
            (f"{side}_band", BAND),
        )
    }  # fmt: skip


def _blocks(a: RunFigures, b: RunFigures) -> pl.DataFrame:
    """The blocks that are alike in both runs."""
    key, values = ["stage", "kind", "chunk"], ["blocks", "ns", "slowest", "slowest_ns"]
    sides = [
        run.blocks.rename({"mean_ns": "ns"}).rename({value: f"{s}_{value}" for value in values})
        for s, run in (("a", a), ("b", b))
    ]
    blocks = sides[0].join(sides[1], on=key, how="full", coalesce=True, nulls_equal=True)
    if _unlike(a, b, OTHER_BLOCKS):
        blocks = blocks.clear()
    if _unlike(a, b, ["backwards"]):
        blocks = blocks.filter(~pl.col("kind").is_in(BACKWARDS))
    longer = pl.col("b_ns") - pl.col("a_ns")
    change = pl.col("b_ns") / pl.when(pl.col("a_ns") != 0).then("a_ns") - 1
    blocks = blocks.with_columns(difference=longer, change=change).sort(
        pl.col("difference").abs().round(), *key, descending=[True, False, False, False], nulls_last=True
    )
    sided = [f"{side}_{value}" for value in values for side in "ab"]
    return blocks.select(*key, *sided[:4], "difference", "change", *sided[4:])


def _ms(column: str) -> pl.Expr:
    return (pl.col(column) / 1e6).alias(f"{column} ms")


def _percent(share: float) -> str:
    """With as many digits as it takes to be above zero, up to two."""
    return f"{share:.1%}" if share >= ALIKE else f"{share:.2%}" if share >= 5e-5 else "less than 0.01%"


def _rounded(value: float) -> float:
    """To two digits, and without the sign of a negative zero."""
    return round(value, 2) + 0.0


def _sentences(comparison: Comparison) -> Iterator[Sentence]:
    a, b = comparison.names
    if comparison.unlike:
        text = f"{a} and {b} are not alike ({'; '.join(comparison.unlike)}): only what is alike is compared."
        yield Sentence("unlike", {"unlike": list(comparison.unlike)}, text)
    figures = {row["what"]: row for row in comparison.whole.iter_rows(named=True)}
    time = _step(comparison.whole)
    if time is None:
        return
    much = f"{duration(abs(time['difference']))} ({_percent(abs(time['change']))})"
    how = "more" if time["difference"] > 0 else "less"
    text = f"The {time['what']} is {duration(time['b'])} in {b}, {much} {how} than in {a}"
    if not time["difference"]:
        text = f"The {time['what']} is the same in {a} and {b}: {duration(time['b'])}"
    elif abs(time["change"]) < ALIKE:
        text = f"The {time['what']} is nearly the same in {a} and {b}: {duration(time['b'])} in {b}, {much} {how}"
    if (bubble := figures.get(SHARES[0])) is not None and bubble["difference"] is not None:
        points = f" instead of {bubble['a']:.1%} ({100 * bubble['difference']:+.1f} points)"
        text += f"; the bubble is {bubble['b']:.1%}{points if abs(bubble['difference']) >= 0.0005 else ' in both'}"
    text += OF_HOST if comparison.host_times else ""
    yield Sentence("difference", {**time, "bubble": bubble and bubble["difference"]}, f"{text}.")
    if comparison.predicted is not None:
        yield comparison.predicted
    longer = max(time["a"], time["b"])
    yield from _level_sentence(comparison, longer)
    yield from _cause_sentences(comparison, longer)


def _step(whole: pl.DataFrame) -> dict[str, Any] | None:
    """The row of the step time, else of the pipeline time; None where a run has neither."""
    rows = {row["what"]: row for row in whole.drop_nulls("change").iter_rows(named=True)}
    return rows.get("step time") or rows.get("pipeline time")


def _level_sentence(comparison: Comparison, step: float) -> Iterator[Sentence]:
    """What the difference is made of."""
    if comparison.levels.is_empty():
        return
    facts = {f"{level}_ns": more for level, more in comparison.levels.select("level", "difference").rows()}
    a_ns, b_ns, difference = comparison.levels.select(pl.col("a_ns", "b_ns", "difference").sum()).row(0)
    facts |= {"a_step_ns": a_ns, "b_step_ns": b_ns, "step_ns": difference}
    said = comparison.levels.filter(pl.col("difference").abs() >= SMALL * step).sort(
        pl.col("difference").abs(), descending=True, maintain_order=True
    )
    facts["smaller_ns"] = rest = difference - said["difference"].sum()
    named = [(more, LEVELS[level]) for level, more in said.select("level", "difference").rows()]
    named += [(rest, "smaller parts")] if abs(rest) >= UNSEEN * step else []
    parts = [f"{duration(abs(more))} {'more' if more > 0 else 'less'} from {words}" for more, words in named]
    text = f"In a step, {comparison.names[1]} has {cause_words.listed(parts)}."
    if said.is_empty():
        text = f"No level differs by {SMALL:.0%} of a step or more."
    for sides in said.filter(level="collectives").select("a_ns", "b_ns").rows():
        for name, costs in zip(comparison.names, sides, strict=True):
            if not costs:
                text += f" In {name} no collective costs time: if none was recorded there, that time counts as delays."
    yield Sentence("levels-changed", facts, text)


def _cause_sentences(comparison: Comparison, step: float) -> Iterator[Sentence]:
    """The causes that one run has and the other has not, or that gain less in the other."""
    if not comparison.gains:
        text = "What causes cost cannot be said of both runs (report says why), so their causes are not compared."
        yield Sentence("causes-unknown", {}, text)
        return
    other_parts = pl.col("parts").list.eval(pl.element().str.contains(ONLY, literal=True)).list.any()
    more = pl.col("difference").abs() >= SAID * step
    changed = comparison.causes.filter(more | other_parts.fill_null(value=False))
    if changed.is_empty():
        yield Sentence("no-cause-changed", {}, f"No cause differs by {SAID:.0%} of a step or more.")
    for row in changed.iter_rows(named=True):
        sides = [(side, name) for side, name in zip("ab", comparison.names, strict=True) if row[f"in_{side}"]]
        if len(sides) == 1:
            ((side, name),) = sides
            cause = {each: row[each] for each in PLACE} | {each: row[f"{side}_{each}"] for each in VALUES}
            text = f"Only in {name}: {cause_words.sentence(cause)}"
            then = cause_words.next_step(cause) if side == "b" else ""
        else:
            gains = " and ".join(f"{duration(row[f'{side}_gain_ns'])} in {name}" for side, name in sides)
            then = ""
            text = f"In both: {cause_words.title(row)}; without that a step would be shorter by {gains}."
        facts = {name: value for name, value in row.items() if value is not None}
        yield Sentence(CHANGED, facts, text, then)
