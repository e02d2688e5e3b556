"""The public names, for type checkers; `__init__.py` loads each from the module that is named here."""
# ruff: noqa: I001

from trace_export.analysis.baseline import Baseline as Baseline
from trace_export.analysis.compare import Comparison as Comparison
from trace_export.analysis.explanation import Explanation as Explanation
from trace_export.analysis.formulas import ClosedForm as ClosedForm
from trace_export.analysis.gate import Gate as Gate
from trace_export.analysis.model_summary import ModelSummary as ModelSummary
from trace_export.analysis.report import Report as Report
from trace_export.answer import Place as Place, ReportTable as ReportTable
from trace_export.analysis.run_figures import RunFigures as RunFigures
from trace_export.analysis.slowdown import Slowdown as Slowdown
from trace_export.analysis.summary import Summary as Summary
from trace_export.analysis.theory import Theory as Theory
from trace_export.analysis.trust import Trust as Trust
from trace_export.answer import Sentence as Sentence
from trace_export.api import (
    Compared as Compared,
    Overviewed as Overviewed,
    compare as compare,
    inspect as inspect,
    load as load,
    overview as overview,
    watch as watch,
)
from trace_export.arguments import Inputs as Inputs, NumberSet as NumberSet
from trace_export.choices import (
    Align as Align,
    ColorBy as ColorBy,
    CostName as CostName,
    Detail as Detail,
    Format as Format,
    HeatMapFormat as HeatMapFormat,
    Infer as Infer,
    Legend as Legend,
    OverviewFormat as OverviewFormat,
    Table as Table,
    Theme as Theme,
    Tracks as Tracks,
)
from trace_export.clocks.fit import ClockFit as ClockFit, fit_clocks as fit_clocks
from trace_export.deprecated import (
    Exported as Exported,
    Reported as Reported,
    export as export,
    report as report,
    save_baseline as save_baseline,
)
from trace_export.errors import (
    AlignmentError as AlignmentError,
    NothingToExportError as NothingToExportError,
    OutputError as OutputError,
    SourceError as SourceError,
    TraceExportError as TraceExportError,
    UsageError as UsageError,
)
from trace_export.inspection.inspect import Inspection as Inspection
from trace_export.live.look import Look as Look
from trace_export.live.step_figures import StepFigures as StepFigures
from trace_export.model import (
    Declared as Declared,
    Interpretation as Interpretation,
    KernelFile as KernelFile,
    Note as Note,
    Plan as Plan,
    Profile as Profile,
    Recognition as Recognition,
)
from trace_export.options import (
    Aligning as Aligning,
    Asking as Asking,
    Comparing as Comparing,
    Drawing as Drawing,
    Exporting as Exporting,
    Inspecting as Inspecting,
    Judging as Judging,
    Loading as Loading,
    Overviewing as Overviewing,
    Part as Part,
    Replacing as Replacing,
    Reporting as Reporting,
    Saving as Saving,
    Watching as Watching,
    Writing as Writing,
)
from trace_export.plot import Plot as Plot
from trace_export.progress import Progress as Progress
from trace_export.run import Run as Run
from trace_export.scale.build import Overview as Overview
from trace_export.schedules.simulate import Costs as Costs
from trace_export.selection import Window as Window
from trace_export.simulation import Simulation as Simulation, draw_schedules as draw_schedules, simulate as simulate
from trace_export.steps.path import CriticalPath as CriticalPath
from trace_export.writers.pictures.style import FigureStyle as FigureStyle

__version__: str
