"""What `export` and `simulate` print of a run: a few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trace_export.analysis.clock_words import clocks_line
from trace_export.units import duration

if TYPE_CHECKING:
    from trace_export.analysis.model_summary import ModelSummary
    from trace_export.analysis.summary import Summary


def run_rows(run: Summary) -> list[tuple[str, str]]:
    """A run: name and value, as the terminal shows them."""
    blocks = ", ".join(f"{count} {kind}" for kind, count in run.blocks.items())
    least = "at least " if any(note.code == "stages-deeper" for note in run.notes) else ""
    of_all = f" of {least}{run.all_stages}" if run.stages < run.all_stages else ""
    rows = [
        ("hosts", f"{len(run.hosts)} ({_few(run.hosts)})"),
        ("source", ", ".join(run.kinds)),
        ("ranks", str(run.ranks)),
        ("stages", f"{run.stages}{of_all} ({run.stage_origin})"),
        ("schedule", _schedule(run)),
        ("steps", _steps(run)),
        ("blocks", blocks),
    ]
    if run.bubble is not None:
        which = "whole steps" if 0 < run.whole_steps < run.steps else "steps"
        outside = f"; up to {run.outside:.0%} of a GPU's computing is outside all blocks" if run.outside else ""
        rows.append(("bubble", f"{run.bubble:.1%} of the pipeline time of the {which}{_whose(run)}{outside}"))
    rows.append(("clocks", clocks_line(run.clocks)))
    warnings = sum(note.level == "warning" for note in run.notes)
    rows.append(("warnings", str(warnings + len(run.failures))))
    return rows


def model_rows(model: ModelSummary) -> list[tuple[str, str]]:
    """A simulated schedule: name and value, as the terminal shows them."""
    chunks = f", {model.chunks} chunks each" if model.chunks > 1 else ""
    rows = [
        ("schedule", model.schedule),
        ("stages", f"{model.stages}{chunks}"),
        ("micro-batches", str(model.microbatches)),
        ("blocks", str(model.blocks)),
        ("step", f"{model.step_ns / 1e6:.3f} ms"),
        ("bubble", f"{model.bubble:.2%} of the step (first start to last end over all stages)"),
        ("own bubble", f"{model.bubble_own:.2%} of each stage's own window, from its first start to its last end"),
    ]
    rows.append(("in flight", f"at the peak, activations of {model.in_flight:g} micro-batches on one stage"))
    if model.formula is not None and model.formula_idle_ns is not None:
        where = ", I the gradient of the input" if "I" in model.formula else ""
        idle = f"{model.formula_idle_ns / 1e6:.3f} ms"
        rows.append(("published", f"idle per rank by the formula {model.formula}{where}: {idle}"))
    return rows


def _schedule(run: Summary) -> str:
    if run.schedule is None:
        return "the blocks follow no known schedule" if run.stages > 1 else "not shown by a single stage"
    return run.schedule + {"exact": ", exactly", "likely": ", probably (see report --full)"}[run.schedule_certainty]


def _steps(run: Summary) -> str:
    words = [str(run.steps) if run.whole_steps == run.steps else f"{run.steps} ({run.whole_steps} whole)"]
    if run.step_ns:
        words.append(f"{duration(run.step_ns)} from start to start")
    if run.pipeline_ns:
        means = " (means)" if run.whole_steps > 1 else ""
        words.append(f"pipeline time {duration(run.pipeline_ns)}{means}")
    return ", ".join(words) + (_whose(run) if len(words) > 1 else "")


def _whose(run: Summary) -> str:
    """Whose times figures are made of, where they are not the device's."""
    return ", in times of the host" if run.host_times else ""


def _few(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f", … {len(names) - most} more" if len(names) > most else "")
