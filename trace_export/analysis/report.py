"""How much bubble, where, and why: all of a run's analysis as frames, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.clock_words import unconnected
from trace_export.analysis.counted_steps import counted, of_counted_steps
from trace_export.analysis.explanation import Explanation
from trace_export.analysis.markdown import document
from trace_export.analysis.report_tables import (
    PARTS,
    brief_tables,
    path_means,
    stage_means,
    tables,
)
from trace_export.analysis.theory import Theory
from trace_export.analysis.theory import explain as theory_of
from trace_export.analysis.transfer_split import links, split_messages
from trace_export.analysis.verdict import verdict
from trace_export.answer import ReportTable, Sentence
from trace_export.model import NO_HOST, STEP_KEY, Note, Profile
from trace_export.steps.idle import CAUSES
from trace_export.units import EPOCH_NS, utc

if TYPE_CHECKING:
    from trace_export.analysis.run_figures import RunFigures
    from trace_export.analysis.slowdown import Slowdown

HOSTS_SHOWN = 4
OF_CAUSE = "slow-blocks"
"""The codes of further sentences on a cause begin with this."""
CAUSES_SAID = 3
"""Causes that have a sentence on the first screen."""


@dataclass(frozen=True)
class Report:
    """A run's analysis; times in nanoseconds, shares from 0 to 1.

    The causes, levels and theory are those of the whole run; `steps`, `ranks`, `stages`, `idle` and the critical path
    those of what was selected, as they are in the whole run. Means over steps are those over whole
    steps, if there are any.

    `steps` as `Bubbles.steps`. `ranks` as `Bubbles.ranks`. `stages`: run, step, stage, ranks and, as means over the
    ranks, busy_ns, global_ns, own_ns and a column per cause. `idle`: cause, idle_ns (mean per rank and step), share (of
    the pipeline time). `explanation` has causes, levels, trust and path. `links` as `transfer_split.links`.
    `theory` as in `theory.explain`. `clocks` says how sure waits across hosts are, and `verdict` has the answer in a
    few sentences, the most important first. `hosts` are those of ranks with blocks, and `started_ns` is the first start
    (None without wall clocks). `slowdown` is that of the heat map, where it was asked for.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    stages: pl.DataFrame
    idle: pl.DataFrame
    explanation: Explanation
    links: pl.DataFrame
    theory: Theory
    clocks: str
    verdict: tuple[Sentence, ...]
    hosts: tuple[str, ...]
    started_ns: int | None
    notes: tuple[Note, ...]
    _measured: Bubbles = field(repr=False)
    slowdown: Slowdown | None = None

    @cached_property
    def figures(self) -> RunFigures:
        """What a comparison needs of this run."""
        from trace_export.analysis.run_figures import run_figures

        return run_figures(self._measured, self.explanation)

    @property
    def causes(self) -> pl.DataFrame:
        """The causes of long steps, as `explanation.CAUSES`."""
        return self.explanation.causes

    @property
    def path(self) -> pl.DataFrame:
        """The critical path of the steps that are shown, as `steps.path.PARTS`."""
        return self.explanation.path.parts.join(
            self.steps, on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left"
        )

    @cached_property
    def stage_means(self) -> pl.DataFrame:
        """Means of `stages` over the whole steps, the busiest stage first: stage, ranks, busy_ns, bubble, bubble_own, a
        column per cause, mostly (what it is idle for most of the time, null where it is not) and mostly_ns."""
        return stage_means(self)

    @cached_property
    def path_means(self) -> pl.DataFrame:
        """The critical path of a mean step: part, kind, stage, from_stage, step_ns, share, the longest first."""
        return path_means(self)

    @cached_property
    def explained(self) -> int:
        """The row of `steps` in which the first cause is seen best; without one, that nearest to the mean step."""
        steps = counted(self.steps.with_row_index("row"))
        for cause in self.causes.filter("sentence").drop_nulls("step").select(STEP_KEY).head(1).iter_rows(named=True):
            key = pl.DataFrame([cause], schema={name: steps.schema[name] for name in STEP_KEY})
            step = steps.join(key, on=STEP_KEY, how="semi", nulls_equal=True)
            if step.height:
                return int(step["row"][0])
        length = pl.coalesce("step_ns", "pipeline_ns")
        return int(steps.sort((length - length.mean()).abs(), "row")["row"][0])

    @property
    def answer(self) -> tuple[Sentence, ...]:
        """The sentences of `verdict` that fit on a screen: of many causes the first ones; where nothing stands out, how
        sure that is only if there is a doubt."""
        codes, causes, shown = set(self.causes["code"]), 0, True
        sound = any(sentence.code == "nothing-stands-out" for sentence in self.verdict)
        said = []
        for sentence in self.verdict:
            causes += sentence.code in codes
            if not sentence.code.startswith(OF_CAUSE):
                shown = sentence.code not in codes or causes <= CAUSES_SAID
            if shown and not (sound and sentence.code == "certainty" and not sentence.facts["doubts"]):
                said.append(sentence)
        return tuple(said)

    @property
    def further(self) -> tuple[Sentence, ...]:
        """The other sentences of `verdict`."""
        answer = self.answer
        return tuple(sentence for sentence in self.verdict if sentence not in answer)

    def deeper(self, said: Mapping[int, Sentence]) -> Report:
        """The report with a further sentence on the causes in some rows, each after the sentence on the cause. Its next
        step replaces that of the cause."""
        codes, rows = set(self.causes["code"]), iter(self.causes["sentence"].arg_true())
        verdict: list[Sentence] = []
        for sentence in self.verdict:
            more = said.get(next(rows)) if sentence.code in codes else None
            verdict += [sentence] if more is None else [replace(sentence, next="") if more.next else sentence, more]
        return replace(self, verdict=tuple(verdict))

    def and_also(self, *said: Sentence) -> Report:
        """The report with more sentences, before the last, which says how sure all is."""
        return replace(self, verdict=(*self.verdict[:-1], *said, *self.verdict[-1:]))

    def on(self, inputs: str) -> Report:
        """The report, whose next steps name what was read (`inputs`, as words of a command) instead of DIR."""
        return replace(self, verdict=tuple(sentence.on(inputs) for sentence in self.verdict))

    def json(self) -> str:
        """Everything, as one JSON document."""
        from trace_export.analysis.report_document import report_document
        from trace_export.documents import encode

        return encode(report_document(self))

    def tables(self) -> list[ReportTable]:
        """The report as people read it, worst rows first."""
        return [_marked(table, self._share("inferred"), self._share("host")) for table in tables(self)]

    def brief(self) -> list[ReportTable]:
        """The tables of the first screen: some steps, the stages and causes that matter. Empty ones are left out."""
        return brief_tables(self)

    def _share(self, of: str) -> float:
        """The share of the blocks that were `inferred`, or that have times of the `host`."""
        return next((s.facts[f"blocks_{of}"] for s in self.verdict if s.code == "certainty"), 0.0)

    def markdown(self, name: str, *, full: bool = False) -> str:
        """The report as a Markdown document; `name` is that of the run. `full`: with all sentences and tables."""
        said, shown = (self.verdict, self.tables()) if full else (self.answer, self.brief())
        return document(f"Pipeline report: {name}", self.heading, said, shown)

    @property
    def heading(self) -> str:
        """What was measured, in a line: ranks, hosts, when."""
        shown = ", ".join(self.hosts[:HOSTS_SHOWN]) + (", …" if len(self.hosts) > HOSTS_SHOWN else "")
        when = "" if self.started_ns is None else f", recorded {utc(self.started_ns)[:19].replace('T', ' ')} UTC"
        ranks = self.ranks["rank"].n_unique()
        hosts = f" on {len(self.hosts)} host{'s' * (len(self.hosts) != 1)} ({shown})"
        of = f"{ranks} rank{'s' * (ranks != 1)}" if ranks else "no step"
        return f"{of}{'' if self.hosts == (NO_HOST,) else hosts}{when}"


def report(measured: Bubbles, explanation: Explanation) -> Report:
    """The whole analysis of a run that has been interpreted and aligned: its bubbles, of the part that is shown, and
    the explanation of all its steps."""
    steps, ranks, whole = measured.steps, measured.ranks, measured.whole
    stages = (
        ranks.group_by(*STEP_KEY, "stage")
        .agg(pl.len().alias("ranks"), pl.col("busy_ns", "global_ns", "own_ns", *PARTS).mean())
        .sort(*STEP_KEY, "stage")
    )
    all_steps = measured if whole is measured.profile else measured.of(whole)
    theory = theory_of(of_counted_steps(whole), explanation._overhead, all_steps.pipeline_ns)
    return Report(
        steps=steps,
        ranks=ranks,
        stages=stages,
        idle=idle_of(ranks),
        explanation=explanation,
        links=links(measured.profile, split_messages(measured.profile.messages)),
        theory=theory,
        clocks=_clocks(whole),
        verdict=verdict(explanation, measured, theory),
        hosts=tuple(_hosts(measured.profile)),
        started_ns=_started(whole, steps),
        notes=measured.profile.notes,
        _measured=measured,
    )


def idle_of(ranks: pl.DataFrame) -> pl.DataFrame:
    """cause, idle_ns, share: idle time by cause, of `Bubbles.ranks`, means per rank over the steps that count."""
    usual = counted(ranks)
    length = (usual["step_end_ns"] - usual["step_start_ns"]).mean()
    rows = [(name, usual[f"{cause}_ns"].mean()) for cause, name in CAUSES.items()]
    frame = pl.DataFrame(rows, schema={"cause": pl.String, "idle_ns": pl.Float64}, orient="row")
    return frame.with_columns(share=pl.col("idle_ns") / pl.lit(length, pl.Float64)).filter(pl.col("idle_ns") > 0)


def _marked(table: ReportTable, inferred: float, host: float) -> ReportTable:
    """A table, whose note says that its figures rest on inferred blocks or times of the host, if they do."""
    if table.frame.is_empty():
        return table
    how = "from inferred blocks" if inferred == 1 else f"from blocks, {inferred:.0%} of them inferred"
    notes = [table.note, how if inferred else "", "in times of the host" if host else ""]
    return replace(table, note="; ".join(filter(None, notes)))


def _hosts(profile: Profile) -> list[str]:
    drawn = profile.ranks_with_blocks.select("host").unique()
    labelled = drawn.join(profile.hosts, on="host", how="left").sort("machine", "host")
    return labelled.select(pl.coalesce("label", "host").fill_null("?")).to_series().to_list()


def _started(profile: Profile, steps: pl.DataFrame) -> int | None:
    """When the first step started, where the clocks are wall clocks."""
    if steps.is_empty() or profile.hosts["epoch"].is_not_null().any():
        return None
    first = int(steps["start_ns"].to_numpy().min())
    return first if first >= EPOCH_NS else None


def _clocks(profile: Profile) -> str:
    """How uncertain clocks make waits between hosts, as a part of a sentence."""
    if profile.ranks_with_blocks["host"].n_unique() < 2:
        return ""
    errors = profile.clocks["sd_ns"].drop_nulls().to_numpy()
    if not len(errors):
        return "; how well the hosts' clocks agree is not known, so waits across hosts may be wrong"
    if (groups := unconnected(profile.clocks)) > 1:
        return f"; nothing connects {groups} groups of hosts, so waits between the groups are not known"
    return f"; waits across hosts are known to about ±{errors.max() / 1000:.3g} µs"
