"""Profiles of a pipeline-parallel training run → one chart on one clock.

    import trace_export
    run = trace_export.load("logs").align()
    run.spans                                  # every block, a Polars frame
    run.report().steps                         # bubbles, per step
    run.write("chart.pftrace")

Everything public is listed here and loaded when it is first used, so that a training script may import
`trace_export.instrument` without the packages that drawing needs.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` has it too, and would be most of what is loaded before Ctrl-C is caught
if TYPE_CHECKING:
    from typing import Any

    from trace_export.api import Run, load, simulate
    from trace_export.clocks.fit import ClockFit, fit_clocks
    from trace_export.errors import (
        AlignmentError,
        NothingToExportError,
        OutputError,
        SourceError,
        TraceExportError,
        UsageError,
    )
    from trace_export.model import Declared, Note, Profile
    from trace_export.schedules.simulate import Costs

__all__ = [
    "AlignmentError",
    "ClockFit",
    "Costs",
    "Declared",
    "Note",
    "NothingToExportError",
    "OutputError",
    "Profile",
    "Run",
    "SourceError",
    "TraceExportError",
    "UsageError",
    "fit_clocks",
    "load",
    "simulate",
]

_HOMES = {
    "api": ("Run", "load", "simulate"),
    "clocks.fit": ("ClockFit", "fit_clocks"),
    "model": ("Declared", "Note", "Profile"),
    "schedules.simulate": ("Costs",),
    "errors": (
        "AlignmentError",
        "NothingToExportError",
        "OutputError",
        "SourceError",
        "TraceExportError",
        "UsageError",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
