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

    from trace_export.analysis.baseline import Baseline
    from trace_export.analysis.compare import Comparison
    from trace_export.analysis.explanation import Explanation, Trust
    from trace_export.analysis.formulas import ClosedForm
    from trace_export.analysis.gate import Gate
    from trace_export.analysis.model_summary import ModelSummary
    from trace_export.analysis.report import Report
    from trace_export.analysis.report_tables import Place, ReportTable
    from trace_export.analysis.run_figures import RunFigures
    from trace_export.analysis.slowdown import Slowdown
    from trace_export.analysis.summary import Summary
    from trace_export.analysis.theory import Theory
    from trace_export.analysis.verdict import Sentence
    from trace_export.api import (
        Compared,
        Exported,
        Overviewed,
        Reported,
        Simulation,
        compare,
        draw_schedules,
        export,
        inspect,
        load,
        overview,
        report,
        save_baseline,
        simulate,
        watch,
    )
    from trace_export.choices import (
        Align,
        ColorBy,
        CostName,
        Detail,
        Format,
        HeatMapFormat,
        Infer,
        Legend,
        OverviewFormat,
        Table,
        Theme,
        Tracks,
    )  # fmt: skip
    from trace_export.clocks.fit import ClockFit, fit_clocks
    from trace_export.clocks.problem import ClockSettings
    from trace_export.errors import (
        AlignmentError,
        NothingToExportError,
        OutputError,
        SourceError,
        TraceExportError,
        UsageError,
    )
    from trace_export.live.look import Look
    from trace_export.live.step_figures import StepFigures
    from trace_export.model import Declared, Interpretation, KernelFile, Note, Plan, Profile, Recognition
    from trace_export.scale.build import Overview
    from trace_export.schedules.simulate import Costs
    from trace_export.selection import Window
    from trace_export.steps.path import CriticalPath
    from trace_export.workflow.arguments import Inputs, NumberSet
    from trace_export.workflow.inspection import Inspection
    from trace_export.workflow.plot import Plot
    from trace_export.workflow.progress import Progress
    from trace_export.workflow.run import Run
    from trace_export.writers.pictures.style import FigureStyle

    __version__: str

_HOMES = {
    "analysis.baseline": ("Baseline",),
    "analysis.compare": ("Comparison",),
    "analysis.gate": ("Gate",),
    "analysis.model_summary": ("ModelSummary",),
    "analysis.report": ("Report",),
    "analysis.report_tables": ("Place", "ReportTable"),
    "analysis.run_figures": ("RunFigures",),
    "analysis.verdict": ("Sentence",),
    "analysis.summary": ("Summary",),
    "analysis.formulas": ("ClosedForm",),
    "analysis.theory": ("Theory",),
    "api": (
        "Compared", "Exported", "Overviewed", "Reported", "Simulation", "compare", "draw_schedules", "export",
        "inspect", "load", "overview", "report", "save_baseline", "simulate", "watch",
    ),
    "live.look": ("Look",),
    "live.step_figures": ("StepFigures",),
    "scale.build": ("Overview",),
    "workflow.arguments": ("Inputs", "NumberSet"),
    "choices": (
        "Align", "ColorBy", "CostName", "Detail", "Format", "HeatMapFormat", "Infer", "Legend", "OverviewFormat",
        "Table", "Theme", "Tracks",
    ),
    "analysis.explanation": ("Explanation", "Trust"),
    "analysis.slowdown": ("Slowdown",),
    "steps.path": ("CriticalPath",),
    "clocks.fit": ("ClockFit", "fit_clocks"),
    "clocks.problem": ("ClockSettings",),
    "errors": (
        "AlignmentError", "NothingToExportError", "OutputError", "SourceError", "TraceExportError", "UsageError",
    ),
    "workflow.inspection": ("Inspection",),
    "model": ("Declared", "Interpretation", "KernelFile", "Note", "Plan", "Profile", "Recognition"),
    "workflow.plot": ("Plot",),
    "workflow.progress": ("Progress",),
    "workflow.run": ("Run",),
    "schedules.simulate": ("Costs",),
    "selection": ("Window",),
    "writers.pictures.style": ("FigureStyle",),
}  # fmt: skip
"""The module of each public name."""

__all__ = [
    "Align",
    "AlignmentError",
    "Baseline",
    "ClockFit",
    "ClockSettings",
    "ClosedForm",
    "ColorBy",
    "Compared",
    "Comparison",
    "CostName",
    "Costs",
    "CriticalPath",
    "Declared",
    "Detail",
    "Explanation",
    "Exported",
    "FigureStyle",
    "Format",
    "Gate",
    "HeatMapFormat",
    "Infer",
    "Inputs",
    "Inspection",
    "Interpretation",
    "KernelFile",
    "Legend",
    "Look",
    "ModelSummary",
    "Note",
    "NothingToExportError",
    "NumberSet",
    "OutputError",
    "Overview",
    "OverviewFormat",
    "Overviewed",
    "Place",
    "Plan",
    "Plot",
    "Profile",
    "Progress",
    "Recognition",
    "Report",
    "ReportTable",
    "Reported",
    "Run",
    "RunFigures",
    "Sentence",
    "Simulation",
    "Slowdown",
    "SourceError",
    "StepFigures",
    "Summary",
    "Table",
    "Theme",
    "Theory",
    "TraceExportError",
    "Tracks",
    "Trust",
    "UsageError",
    "Window",
    "__version__",
    "compare",
    "draw_schedules",
    "export",
    "fit_clocks",
    "inspect",
    "load",
    "overview",
    "report",
    "save_baseline",
    "simulate",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("trace-export")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
