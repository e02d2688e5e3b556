"""What the shell offers for values that take several words or come from a list elsewhere."""

from __future__ import annotations

from importlib.resources import files
from typing import get_args

from trace_export import choices

INSTRUMENT = "instrument"
"""A guide for training scripts, whatever the profiler."""


def formats(incomplete: str) -> list[str]:
    """The formats that may follow those that were typed: `svg,p` → svg,perfetto, svg,png, svg,parquet."""
    typed, comma, _ = incomplete.rpartition(",")
    given = typed.split(",")
    return [f"{typed}{comma}{name}" for name in get_args(choices.Format) if name not in given]


def schedules() -> list[str]:
    """The names that `simulate --schedule` takes."""
    from trace_export.workflow.simulation import known_schedules

    return known_schedules()


def pages() -> list[str]:
    """The pages of the documentation, without the guides that `howto` shows."""
    folder = files("trace_export").joinpath("docs")
    return sorted(entry.name.removesuffix(".md") for entry in folder.iterdir() if entry.name.endswith(".md"))
