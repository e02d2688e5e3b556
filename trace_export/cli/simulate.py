"""`trace-export simulate`: the theoretical chart of a schedule, in every output format."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from trace_export.choices import CostName
from trace_export.cli import terminal
from trace_export.cli.inputs import style
from trace_export.errors import UsageError
from trace_export.options import Simulate
from trace_export.units import nanoseconds

TIMES = "F=10ms,B=20ms,W=10ms"


def simulate_schedule(**given: Unpack[Simulate]) -> None:
    """Draw the theoretical chart of a pipeline schedule."""
    from trace_export.cli import summaries
    from trace_export.simulation import draw_schedules, simulate

    costs = durations(given["times"] or "")
    if given["comm"] is not None:
        costs["transfer"] = given["comm"]
    if given["overlap"] is not None:
        costs["overlap"] = given["overlap"]
    schedule, sizes = given["schedule"], (given["stages"], given["microbatches"])
    target = (given["path"] or Path(), given["formats"])
    figure, force = style(given), given["force"]
    if "," in schedule:
        several(schedule, given["chunks"], given["gzip"] or given["bubbles"] or given["window"] is not None)
        runs, files = draw_schedules(schedule, *sizes, costs, *target, figure=figure, force=force)
    else:
        runs = [simulate(schedule, *sizes, costs, chunks=given["chunks"])]
        shown = runs[0].select(window=given["window"])
        files = shown.write(*target, gzip=given["gzip"], bubbles=given["bubbles"], figure=figure, force=force)
    if given["json"]:
        from trace_export.analysis.run_document import simulate_document
        from trace_export.documents import encode

        terminal.json(encode(simulate_document([run.theory() for run in runs], files)))
    elif not given["quiet"]:
        for run in runs:
            terminal.facts(summaries.model_rows(run.theory()))
        terminal.files(files)


def several(schedules: str, chunks: int | None, further: bool) -> None:
    """Raises UsageError for options that one picture of several schedules does not have."""
    if chunks is not None or further:
        what = f"{schedules} is one picture, to which --chunks, --gzip, --bubbles and --time do not apply"
        raise UsageError(what, "leave them out, or simulate one schedule", parameter="schedule")


KINDS: dict[str, CostName] = {"F": "forward", "B": "backward", "W": "weight"}


def durations(text: str) -> dict[CostName, float]:
    """`F=10ms,B=20ms` → nanoseconds by the names of the API. Raises UsageError."""
    result: dict[CostName, float] = {}
    for part in filter(None, text.split(",")):
        kind, equals, time = (word.strip() for word in part.partition("="))
        if not equals or kind not in KINDS:
            what = f'"{part.strip()}" is not KIND=TIME'
            raise UsageError(what, f"write it like {TIMES}", parameter="costs.forward")
        if KINDS[kind] in result:
            raise UsageError(f"{kind} has two times", f"write it like {TIMES}", parameter="costs.forward")
        result[KINDS[kind]] = nanoseconds(time, "costs.forward")
    return result
