"""What makes a step longer than it need be: the causes worth fixing, as facts, with what fixing each would give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from trace_export.analysis import stragglers
from trace_export.analysis.theory import Theory
from trace_export.analysis.whole_steps import counted
from trace_export.model import RANK_STEP_KEY, STEP_KEY, Profile
from trace_export.pipeline.completeness import absent
from trace_export.selection import Numbers

WORTH = 0.02
"""What starts late or takes long, but costs a smaller part of the step, is not worth a sentence."""
LONG_OPTIMIZER = 0.15
"""An optimizer, or a pause between steps, that takes a larger part of the step is worth a look: no stage works."""
LATER = 3
"""A host or rank starts late where it is idle with its input there this many times as long as the median of the
others."""


@dataclass(frozen=True)
class Finding:
    """A cause: `code` names its kind, `saves_ns` is how much shorter a step would be without it, `facts` has the place
    and the numbers behind it."""

    code: str
    saves_ns: float
    facts: dict[str, Any]


@dataclass(frozen=True)
class Evidence:
    """What causes are found from: a profile of whole steps, its `Bubbles.steps` and `Bubbles.ranks`, the slow links of
    `stragglers`, the theory, the table `causes.CAUSES` of what a replay of the steps gains, and where that is empty
    because the replay leaves out too much of the time, the measured time by that of the replay (`unexplained`)."""

    profile: Profile
    steps: pl.DataFrame
    ranks: pl.DataFrame
    slow_links: pl.DataFrame
    theory: Theory
    causes: pl.DataFrame
    unexplained: float | None = None

    @cached_property
    def work(self) -> pl.DataFrame:
        """The work of each rank and step, as `stragglers.step_work`."""
        return stragglers.step_work(self.profile)

    def replayed_ns(self, kind: str, **place: int | str) -> float | None:
        """What a step is shorter in the replay without the cause at this place; None where it was not replayed."""
        found = self.causes.filter(pl.col("kind") == kind, *(pl.col(column) == at for column, at in place.items()))
        return None if found.is_empty() else float(found["gain_ns"][0])

    @property
    def step_ns(self) -> float:
        """The usual time of a step, or where no two are in a row, its pipeline time."""
        steps = counted(self.steps)
        return middle(steps["step_ns"]) or middle(steps["pipeline_ns"]) or 0.0

    def host(self, rank: int) -> str:
        return str(self.hosts.get(rank, ""))

    @property
    def hosts(self) -> dict[int, str]:
        labels = self.profile.ranks.join(self.profile.hosts, on="host", how="left")
        return dict(labels.select("rank", pl.coalesce("label", "host").fill_null("")).iter_rows())


def findings(evidence: Evidence) -> list[Finding]:
    """The causes, the costliest first: what is slow beside its peers, whatever it costs, and of the others those that
    cost at least `WORTH` of a step."""
    if evidence.step_ns <= 0:
        return []
    found = [each for rule in (slow_stage, slow_rank, slow_link) for each in rule(evidence)]
    others = [each for rule in (collective, late_host, long_optimizer, long_pause) for each in rule(evidence)]
    found += [each for each in others if each.saves_ns >= WORTH * evidence.step_ns]
    return sorted(found, key=lambda each: -each.saves_ns)


def slow_stage(evidence: Evidence) -> Iterator[Finding]:
    """The slowest stage, where all its ranks are slow beside the median stage; else it is a matter of some ranks."""
    work = stragglers.rank_work(evidence.work).drop_nulls()
    stages = work.group_by("stage").agg(pl.col("microbatch_ns").median(), least=pl.col("microbatch_ns").min())
    usual = middle(stages["microbatch_ns"])
    if stages.height < 2 or not usual:
        return
    slow = stages.filter(pl.col("least") > stragglers.SLOW * usual).sort("microbatch_ns", "stage", descending=True)
    if slow.is_empty():
        return
    stage, taken = slow.select("stage", "microbatch_ns").row(0)
    ranks = work.filter(pl.col("stage") == stage)["rank"].sort().to_list()
    known = evidence.replayed_ns("stage", stage=stage)
    known = _modelled_saving(evidence.theory, stage) if known is None else known
    saves = (taken - usual) * _microbatches(evidence) if known is None else known
    hosts = sorted({evidence.host(rank) for rank in ranks} - {""})
    facts = {"stage": stage, "ranks": ranks, "hosts": hosts, "ratio": taken / usual, "simulated": known is not None}
    yield Finding("slow-stage", saves, facts)


def _modelled_saving(theory: Theory, stage: int) -> float | None:
    """What the model saves in a step where this stage is as fast as the median stage."""
    rows = dict(theory.changes.select("change", "pipeline_ns").iter_rows())
    then = rows.get(f"stage {stage} as fast as the median stage")
    return None if then is None else float(rows["as it is"]) - float(then)


def _microbatches(evidence: Evidence) -> float:
    """How many micro-batches a rank has in a step."""
    return middle(evidence.work["microbatches"]) or 0.0


def slow_rank(evidence: Evidence) -> Iterator[Finding]:
    """The rank that is slowest beside the other ranks of its stage."""
    work = stragglers.rank_work(evidence.work).drop_nulls()
    others = work.join(work, on="stage", suffix="_other").filter(pl.col("rank") != pl.col("rank_other"))
    beside = others.group_by("rank", "stage", "microbatch_ns").agg(peers=pl.col("microbatch_ns_other").median())
    beside = beside.with_columns(excess=pl.col("microbatch_ns") - pl.col("peers"))
    slow = beside.filter(pl.col("microbatch_ns") > stragglers.SLOW * pl.col("peers")).sort("excess", descending=True)
    for rank, stage, taken, peers, excess in slow.head(1).iter_rows():
        known = evidence.replayed_ns("worker", rank=rank)
        saves = excess * _microbatches(evidence) if known is None else known
        place = {"rank": rank, "stage": stage, "host": evidence.host(rank)}
        yield Finding("slow-rank", saves, {**place, "ratio": taken / peers, "simulated": known is not None})


def slow_link(evidence: Evidence) -> Iterator[Finding]:
    """The slowest link, unless all data reach its receiver late: then it is the receiver that starts late."""
    late = _late_receivers(evidence)
    exposed = _mean_of_ranks(evidence, "transfer_ns")
    for link in evidence.slow_links.filter("slow").iter_rows(named=True):
        if link["dst_rank"] in late:
            continue
        hosts = evidence.host(link["src_rank"]), evidence.host(link["dst_rank"])
        known = evidence.replayed_ns(
            "link", rank=link["src_rank"], to_rank=link["dst_rank"], direction=link["direction"]
        )
        saves = exposed.get(link["dst_rank"], 0.0) * (1 - 1 / link["ratio"]) if known is None else known
        facts = {key: link[key] for key in ("src_rank", "dst_rank", "direction", "ratio", "median_ns", "peers_ns")}
        yield Finding(
            "slow-link", saves, facts | {"src_host": hosts[0], "dst_host": hosts[1], "simulated": known is not None}
        )
        return


def _late_receivers(evidence: Evidence) -> dict[int, float]:
    """rank → idle time of a step, of ranks that all data seem to reach late: without recorded messages, a wait for the
    transfer cannot be distinguished from a start that is late."""
    if evidence.profile.messages.height or evidence.slow_links.is_empty():
        return {}
    links = evidence.slow_links.filter(pl.col("transfers") >= stragglers.ENOUGH)
    all_slow = links.group_by("dst_rank").agg(pl.col("slow").all(), pl.len(), pl.col("ratio").min())
    exposed = _mean_of_ranks(evidence, "transfer_ns")
    slow = all_slow.filter("slow", pl.col("len") > 1)
    return {rank: exposed.get(rank, 0.0) * (1 - 1 / ratio) for rank, ratio in slow.select("dst_rank", "ratio").rows()}


def _mean_of_ranks(evidence: Evidence, column: str) -> dict[int, float]:
    return dict(evidence.ranks.group_by("rank").agg(pl.col(column).mean()).iter_rows())


def collective(evidence: Evidence) -> Iterator[Finding]:
    """The collective that costs most: one that takes long beside that of other stages, or that a rank starts late."""
    found = evidence.causes.filter(pl.col("kind") == "collective").sort("gain_ns", descending=True)
    for cause, ratio, rank, stage, saves in found.select("cause", "ratio", "rank", "stage", "gain_ns").head(1).rows():
        facts = {"cause": cause, "stage": stage, "simulated": True}
        if ratio is None:
            yield Finding("late-collective", saves, {**facts, "rank": rank, "host": evidence.host(rank)})
        else:
            yield Finding("slow-collective", saves, {**facts, "ratio": ratio})


def late_host(evidence: Evidence) -> Iterator[Finding]:
    """The host (or with one host, the rank) whose ranks start late although their input is there, beside the others."""
    late = _lateness(evidence)
    hosts = evidence.hosts
    by_host = len({hosts[rank] for rank in late}) > 1
    groups: dict[object, list[int]] = {}
    for rank in late:
        groups.setdefault(hosts[rank] if by_host else rank, []).append(rank)
    worst = {group: max(late[rank] for rank in ranks) for group, ranks in groups.items()}
    for group, cost in sorted(worst.items(), key=lambda item: -item[1])[:1]:
        usual = middle(pl.Series([other for name, other in worst.items() if name != group], dtype=pl.Float64)) or 0.0
        if len(worst) > 1 and cost > LATER * usual:
            ranks = groups[group]
            facts = {"host": hosts[ranks[0]], "ranks": sorted(ranks), "rank": max(ranks, key=late.__getitem__)}
            yield Finding("late-host" if by_host else "late-rank", cost - usual, facts | {"late_ns": cost})


def _lateness(evidence: Evidence) -> dict[int, float]:
    """rank → time of a step in which it is idle and nothing is missing. A rank of the first stage is also late by what
    it begins the step after its replicas."""
    first = evidence.ranks.filter(pl.col("stage") == pl.col("stage").min())
    begin = first.select("rank", late=pl.col("warm_up_ns") - pl.col("warm_up_ns").median().over(STEP_KEY))
    both = pl.concat([evidence.ranks.select("rank", late=pl.col("late_ns").cast(pl.Float64)), begin])
    steps = evidence.ranks.select(STEP_KEY).n_unique()
    late = dict(both.group_by("rank").agg(pl.col("late").clip(0).sum() / steps).sort("rank").iter_rows())
    receivers = _late_receivers(evidence)
    return {rank: ns + receivers.get(rank, 0.0) for rank, ns in late.items()}


def long_optimizer(evidence: Evidence) -> Iterator[Finding]:
    """The optimizer after the last block of the pipeline, where it takes more than `LONG_OPTIMIZER` of the step."""
    each = _optimizers(evidence)
    if each.is_empty():
        return
    each = each.sort("ns", "rank", descending=[True, False])
    rank, longest = each.row(0)
    usual = middle(each["ns"])
    share = longest / max(evidence.step_ns, longest)
    if share > LONG_OPTIMIZER:
        facts = {"rank": rank, "host": evidence.host(rank), "optimizer_ns": longest, "share": share, "usual_ns": usual}
        yield Finding("long-optimizer", longest / 2, facts)


def _optimizers(evidence: Evidence) -> pl.DataFrame:
    """rank, ns: the mean time that its optimizer takes after the last block of the pipeline."""
    ends = counted(evidence.steps).select(*STEP_KEY, pipeline_end_ns="end_ns")
    columns = [*RANK_STEP_KEY, "start_ns", "end_ns"]
    blocks = evidence.profile.spans.lazy().filter(pl.col("kind") == "OPT").select(columns).collect()
    blocks = blocks.join(ends, on=STEP_KEY, nulls_equal=True)
    after = pl.col("end_ns").max() - pl.max_horizontal(pl.col("pipeline_end_ns").first(), pl.col("start_ns").min())
    return blocks.group_by(RANK_STEP_KEY).agg(ns=after.clip(0)).group_by("rank").agg(pl.col("ns").mean())


def long_pause(evidence: Evidence) -> Iterator[Finding]:
    """What lies between the pipeline of a step and that of the next, without the optimizer where that was recorded, if
    it takes more than `LONG_OPTIMIZER` of the step. Not where a stage is missing, which may work meanwhile."""
    if evidence.profile.declared.deeper or absent(evidence.profile).stages.ranges:
        return
    steps = counted(evidence.steps)
    pipeline = middle(steps["pipeline_ns"])
    if middle(steps["step_ns"]) is None or pipeline is None:
        return
    optimizer = max((ns for _, ns in _optimizers(evidence).iter_rows()), default=0.0)
    pause = evidence.step_ns - pipeline - optimizer
    if pause > LONG_OPTIMIZER * evidence.step_ns:
        facts = {"pause_ns": pause, "share": pause / evidence.step_ns, "optimizer_recorded": optimizer > 0}
        yield Finding("long-pause", pause / 2, facts)


def middle(values: pl.Series) -> float | None:
    """The median; None where there is no value."""
    found = values.median()
    return float(found) if isinstance(found, float | int) else None


def numbers(ranks: Sequence[int]) -> str:
    """Ranks as text: `40-47`."""
    return str(Numbers.of(ranks))
