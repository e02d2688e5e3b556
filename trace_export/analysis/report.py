"""How much bubble, where, and why: all of a run's analysis as frames, and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from trace_export.analysis import stragglers
from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.findings import Evidence
from trace_export.analysis.idle_causes import CAUSES
from trace_export.analysis.markdown import document
from trace_export.analysis.report_tables import PARTS, ReportTable, tables
from trace_export.analysis.step_time import StepTime, step_time
from trace_export.analysis.step_time_tables import step_time_tables
from trace_export.analysis.theory import Theory, explain
from trace_export.analysis.verdict import Sentence, verdict
from trace_export.analysis.whole_steps import counted, of_whole_steps
from trace_export.model import STEP_KEY, Note, Profile
from trace_export.pipeline.step_operations import step_operations
from trace_export.units import utc

HOSTS_SHOWN = 8


@dataclass(frozen=True)
class Report:
    """A run's analysis; times in nanoseconds, shares from 0 to 1.

    `steps` as `Bubbles.steps`. All that is a mean over steps is one over whole steps, where there are any.
    `ranks` as `Bubbles.ranks` (not in the JSON document: it has a row for each rank and step).
    `stages`: run, step, stage, ranks and, as means over the ranks, busy_ns, global_ns, own_ns and a column per cause.
    `causes`: cause, idle_ns (mean per rank and step), share (of the step). `slow_stages`, `slow_ranks`, `slow_links`
    as in `stragglers`. `theory` as in `theory.explain`. `time`: where the time of the steps went, by stragglers and
    along the critical path. `clocks` says how sure waits across hosts are, and `verdict` has the answer in a few
    sentences, the most important first. `hosts` are those of ranks with blocks, and `started_ns` is the first start
    (None without wall clocks).
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    stages: pl.DataFrame
    causes: pl.DataFrame
    slow_stages: pl.DataFrame
    slow_ranks: pl.DataFrame
    slow_links: pl.DataFrame
    theory: Theory
    time: StepTime
    clocks: str
    verdict: tuple[Sentence, ...]
    hosts: tuple[str, ...]
    started_ns: int | None
    notes: tuple[Note, ...]

    def json(self) -> str:
        """Everything, as one JSON document."""
        from trace_export.analysis.report_document import report_document
        from trace_export.documents import encode

        return encode(report_document(self))

    def tables(self) -> list[ReportTable]:
        """The report as people read it, worst rows first."""
        made = tables(self)
        sections = [*made[:2], *step_time_tables(self.time), *made[2:]] if made else []
        return [_marked(table, self._share("inferred"), self._share("host")) for table in sections]

    def _share(self, of: str) -> float:
        """The share of the blocks, and so of what rests on them, that was `inferred` and not recorded, or whose times
        are those of the `host`."""
        return next((s.facts[f"blocks_{of}"] for s in self.verdict if s.code == "certainty"), 0.0)

    def markdown(self, name: str) -> str:
        """The report as a Markdown document; `name` is that of the run."""
        return document(f"Pipeline report: {name}", self.heading, self.verdict, self.tables())

    @property
    def heading(self) -> str:
        """What was measured, in a line: ranks, hosts, when."""
        shown = ", ".join(self.hosts[:HOSTS_SHOWN]) + (", …" if len(self.hosts) > HOSTS_SHOWN else "")
        when = "" if self.started_ns is None else f", recorded {utc(self.started_ns)[:19].replace('T', ' ')} UTC"
        ranks = self.ranks["rank"].n_unique()
        hosts = f"{len(self.hosts)} host{'s' * (len(self.hosts) != 1)} ({shown})"
        return f"{ranks} rank{'s' * (ranks != 1)} on {hosts}{when}"


def report(profile: Profile, time_of: Callable[[], StepTime] | None = None, measured: Bubbles | None = None) -> Report:
    """The whole analysis of a profile that has been interpreted and aligned. `time_of` says where its time went
    where that is known of the whole run of which this is a part; it is asked last, for what it keeps is large.
    `measured`: its bubbles, where they have been measured."""
    measured = measured or Bubbles(profile)
    steps = measured.steps
    whole = of_whole_steps(profile)
    usual = measured if whole is profile else Bubbles(whole)
    stages = (
        measured.ranks.group_by(*STEP_KEY, "stage")
        .agg(pl.len().alias("ranks"), pl.col("busy_ns", "global_ns", "own_ns", *PARTS).mean())
        .sort(*STEP_KEY, "stage")
    )
    length = (usual.ranks["step_end_ns"] - usual.ranks["step_start_ns"]).mean()
    causes = pl.DataFrame(
        [(name, usual.ranks[f"{cause}_ns"].mean()) for cause, name in CAUSES.items()],
        schema={"cause": pl.String, "idle_ns": pl.Float64},
        orient="row",
    ).with_columns(share=pl.col("idle_ns") / pl.lit(length, pl.Float64))
    links = stragglers.slow_links(whole, usual.waits)
    for each in (measured, usual):
        each.release()
    theory = explain(whole, counted(steps))
    time = step_time(profile, step_operations(profile)) if time_of is None else time_of()
    evidence = Evidence(whole, steps, usual.ranks, links, theory, time.trusted_causes, time.unexplained)
    return Report(
        steps=steps,
        ranks=measured.ranks,
        stages=stages,
        causes=causes.filter(pl.col("idle_ns") > 0),
        slow_stages=stragglers.slow_stages(evidence.work),
        slow_ranks=stragglers.slow_ranks(whole),
        slow_links=links,
        theory=theory,
        time=time.of_steps(evidence.step_ns),
        clocks=_clocks(profile),
        verdict=verdict(evidence, profile),
        hosts=tuple(_hosts(profile)),
        started_ns=_started(profile, steps),
        notes=profile.notes,
    )


def _marked(table: ReportTable, inferred: float, host: float) -> ReportTable:
    """A table, whose note says that its figures rest on inferred blocks or times of the host, if they do."""
    if table.frame.is_empty():
        return table
    how = "from inferred blocks" if inferred == 1 else f"from blocks of which {inferred:.0%} are inferred"
    notes = [table.note, how if inferred else "", "in times of the host" if host else ""]
    return replace(table, note="; ".join(filter(None, notes)))


def _hosts(profile: Profile) -> list[str]:
    drawn = profile.ranks.join(profile.spans.select("rank"), on="rank", how="semi").select("host").unique()
    labelled = drawn.join(profile.hosts, on="host", how="left").sort("machine", "host")
    return labelled.select(pl.coalesce("label", "host").fill_null("?")).to_series().to_list()


def _started(profile: Profile, steps: pl.DataFrame) -> int | None:
    """When the first step started, where the clocks are wall clocks."""
    if steps.is_empty() or profile.hosts["epoch"].is_not_null().any():
        return None
    return int(steps["start_ns"].to_numpy().min())


def _clocks(profile: Profile) -> str:
    """What the clocks do to waits between hosts, as a part of a sentence."""
    if profile.ranks.join(profile.spans.select("rank"), on="rank", how="semi")["host"].n_unique() < 2:
        return ""
    errors = profile.clocks["sd_ns"].drop_nulls().to_numpy()
    if not len(errors):
        return "; how well the hosts' clocks agree is not known, so waits across hosts may be wrong"
    return f"; waits across hosts are known to about ±{errors.max() / 1000:.3g} µs"
