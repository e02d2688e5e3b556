"""The tables of the report that say where the time of the steps went: see `step_time.StepTime`."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from trace_export.analysis.causes import LEAST_GAIN
from trace_export.analysis.report_tables import Place, ReportTable, readable
from trace_export.analysis.step_time import StepTime
from trace_export.analysis.stragglers import ENOUGH, SLOW_LINK
from trace_export.analysis.what_if import TRUSTED, Slowdown

STRAGGLING = 1.1
"""A job that is slower by more than this factor is straggling (the study's bound)."""
NEGLIGIBLE = 1.005
"""Of a smaller slowdown the parts are noise."""
WON_BACK = 0.01
"""A smaller share of the lost time is not worth a sentence."""
HALF = 0.5
"""From this share of the lost time on, the study names the last stage or the slowest workers as the cause."""
HEAT = (1.0, 1.5)
"""The colours of the heat map, as in the study."""
LEVELS = {
    "operations": "from all recorded operations",
    "messages": "from blocks and messages",
    "blocks": "from blocks: transfers are estimated from them, and slow ones may hide",
}
PARTS_SHOWN = 12


def step_time_tables(time: StepTime) -> list[ReportTable]:
    """Those that have rows, or a reason why they have none."""
    made = [_first(time), _slowdown(time), _workers(time), _path(time), _links(time)]
    return [table for table in made if table.frame.height or table.note]


def sentences(time: StepTime) -> list[str]:
    """What the tables say, in a few sentences."""
    found = time.slowdown
    if found is None:
        return [f"how much stragglers cost cannot be said: {time.reason}"]
    slower = found.total
    if slower < NEGLIGIBLE:
        said = ["stragglers cost next to nothing: the steps are as long as with every operation of typical length"]
    else:
        said = [f"the steps take {slower:.3g} × as long as they would without stragglers", *_explained(found)]
    if not time.causes.is_empty():
        cause, gain = time.causes.select("cause", "gain").row(0)
        said.append(f"to shorten first: {cause}; without that a step would take {gain:.1%} less")
    return said


def _explained(found: Slowdown) -> Iterator[str]:
    last, slowest = found.by_last_stage, found.by_slowest_workers
    won = " of the lost time would be won back"
    if last is not None and last >= HALF and found.by_worker.shape[1] > 1:
        yield f"{min(last, 1):.0%}{won} with the last stage of typical speed"
        won = ""
    if slowest is not None and slowest >= WON_BACK and found.by_worker.shape[0] > 1:
        names = ", ".join(f"(dp {found.replicas[a]}, stage {b})" for a, b in found.slowest[:3])
        more = f" and {len(found.slowest) - 3} more" if len(found.slowest) > 3 else ""
        workers = "worker" if len(found.slowest) == 1 else "workers"
        yield f"{min(slowest, 1):.0%}{won} with the slowest {workers} {names}{more} of typical speed"


def _first(time: StepTime) -> ReportTable:
    title = "What to shorten first"
    if time.slowdown is None:
        return ReportTable(title, pl.DataFrame(), f"cannot be said: {time.reason}")
    if time.causes.is_empty() and time.unexplained is not None:
        note = (
            f"cannot be said: the replay of the steps accounts for only {1 / time.unexplained:.0%} of the measured time"
        )
        return ReportTable(title, pl.DataFrame(), note)
    if time.causes.is_empty():
        note = f"nothing: no stage, rank, link or host costs {LEAST_GAIN:.1%} of a step by being slower than its peers"
        return ReportTable(title, pl.DataFrame(), note)
    frame = time.causes.select("cause", "ratio", "excess_ns", "gain_ns", "gain")
    note = (
        "; ".join(sentences(time)[:-1])
        + ". gain: what a step would take less, in a replay with this cause as fast as its peers, and its share of the"
        " time from start to start; gains do not add up"
    )
    if time.unexplained is not None:
        note += (
            f". The replay accounts for only {1 / time.unexplained:.0%} of the measured time: do not trust the gains"
        )
    flagged = {row: Place(stage) for row, stage in enumerate(time.causes["stage"].head(3))}
    return ReportTable(title, readable(frame), note, flagged)


def _slowdown(time: StepTime) -> ReportTable:
    found = time.slowdown
    if found is None:
        return ReportTable("Slowdown by stragglers", pl.DataFrame())
    rows = [("run", "", found.total)]
    rows += [("type", name, found.part(times)) for name, times in found.by_type.items()]
    rows += [("stage", str(stage), found.part(times)) for stage, times in found.by_stage.items()]
    if len(found.by_dp) > 1:
        rows += [("dp", str(dp), found.part(times)) for dp, times in found.by_dp.items()]
    head, *parts = rows
    ordered = [head, *sorted(parts, key=lambda row: -row[2])]
    frame = pl.DataFrame(ordered, schema={"part": pl.String, "name": pl.String, "slowdown": pl.Float64}, orient="row")
    flagged = {
        n: Place(int(name) if part == "stage" else None)
        for n, (part, name, value) in enumerate(ordered) if value > STRAGGLING
    }  # fmt: skip
    trust = f"; above {TRUSTED} it should not be trusted" if found.fidelity > TRUSTED else ""
    note = (
        "1 is a run whose operations take the mean of their type, communication the median; a part's is that of a run"
        f" with all else so. {LEVELS[found.level]}{_of_collectives(found)}. Measured time by simulated time:"
        f" {found.fidelity:.3f}{trust}"
    )
    if found.missing:
        note += f"; the source lacks {', '.join(found.missing)}"
    if found.left_out:
        note += f"; {len(found.left_out)} steps are left out: {found.left_out[0][2]}"
    return ReportTable("Slowdown by stragglers", readable(frame), note, flagged)


def _of_collectives(found: Slowdown) -> str:
    """Which collectives the steps are made of, where not all operations were recorded."""
    if found.level == "operations":
        return ""
    names = ", ".join(found.collectives)
    said = f"; collectives: {names}" if names else "; collectives are not part of it"
    if found.without:
        most = max(found.without, key=lambda each: each.parts)
        said += f" ({most.parts} parts of {most.op} are left out: {most.reason})"
    return said


def _workers(time: StepTime) -> ReportTable:
    """The heat map: stages down, replicas across; in the page with colours."""
    found = time.slowdown
    if found is None or found.by_worker.shape[0] < 2 or found.total < NEGLIGIBLE:
        return ReportTable("Slowdown by worker", pl.DataFrame())
    each = found.workers
    replicas = sorted(range(len(each)), key=lambda a: (-each[a].max(), a))[:PARTS_SHOWN]
    columns = {f"dp {found.replicas[a]}": each[a] for a in sorted(replicas)}
    frame = pl.DataFrame({"stage": range(each.shape[1]), **columns})
    flagged = {stage: Place(stage) for stage in range(each.shape[1]) if each[:, stage].max() > STRAGGLING}
    note = "the slowdown with all ideal but this rank (one stage of one replica)"
    if len(each) > len(replicas):
        note += f"; the {len(replicas)} slowest of {len(each)} replicas, all are in --json"
    return ReportTable("Slowdown by worker", readable(frame), note, flagged, heat=HEAT)


def _path(time: StepTime) -> ReportTable:
    steps = time.path.steps
    if steps.is_empty():
        return ReportTable("Critical path", pl.DataFrame())
    total = int(steps["length_ns"].sum())
    sums = (
        time.path.sums().group_by("part", "kind", "stage", "from_stage")
        .agg(pl.col("ns").sum()).sort("ns", "part", "kind", "stage", descending=[True, False, False, False])
    )  # fmt: skip
    frame = sums.select(
        "part", "kind", "stage", "from_stage", ns=pl.col("ns") / steps.height, share=pl.col("ns") / max(total, 1)
    )
    frame = frame.rename({"ns": "step_ns"})
    negative = int(steps["negative_ns"].sum())
    note = (
        "the chain of operations that makes a step as long as it is, from its first start to its last end; means of"
        " a step. launch: a block or transfer starts although nothing is missing"
    )
    if -negative > total / 100:
        note += f"; parts of {-negative / total:.1%} overlap, or the clocks disagree by as much"
    return ReportTable("Critical path", readable(frame), note)


def _links(time: StepTime) -> ReportTable:
    if time.links.is_empty():
        return ReportTable("Transfers", pl.DataFrame())
    frame = time.links.drop("src_stage", "dst_stage").rename({"src_rank": "from", "dst_rank": "to"})
    flagged = {row: Place() for row, slow in enumerate(time.links["slow"]) if slow}
    note = (
        "means of a transfer: in sender late only the receiver was there, in receiver late only the sender, in wire"
        f" both; slow: a median wire time above {SLOW_LINK} × that of its peers, of at least {ENOUGH} transfers"
    )
    return ReportTable("Transfers", readable(frame), note, flagged, ("peers ms", "ratio", "transfers"))
