"""The public names, for type checkers; `__init__.py` loads each from the module that is named here."""

from trace_export.analysis.baseline import Baseline as Baseline
from trace_export.analysis.compare import Comparison as Comparison
from trace_export.analysis.explanation import Explanation as Explanation
from trace_export.analysis.explanation import Trust as Trust
from trace_export.analysis.formulas import ClosedForm as ClosedForm
from trace_export.analysis.gate import Gate as Gate
from trace_export.analysis.model_summary import ModelSummary as ModelSummary
from trace_export.analysis.report import Report as Report
from trace_export.analysis.report_tables import Place as Place
from trace_export.analysis.report_tables import ReportTable as ReportTable
from trace_export.analysis.run_figures import RunFigures as RunFigures
from trace_export.analysis.slowdown import Slowdown as Slowdown
from trace_export.analysis.summary import Summary as Summary
from trace_export.analysis.theory import Theory as Theory
from trace_export.analysis.verdict import Sentence as Sentence
from trace_export.api import (
    Compared as Compared,
)
from trace_export.api import (
    Overviewed as Overviewed,
)
from trace_export.api import (
    Simulation as Simulation,
)
from trace_export.api import (
    compare as compare,
)
from trace_export.api import (
    draw_schedules as draw_schedules,
)
from trace_export.api import (
    inspect as inspect,
)
from trace_export.api import (
    load as load,
)
from trace_export.api import (
    overview as overview,
)
from trace_export.api import (
    simulate as simulate,
)
from trace_export.api import (
    watch as watch,
)
from trace_export.arguments import Inputs as Inputs
from trace_export.arguments import NumberSet as NumberSet
from trace_export.choices import (
    Align as Align,
)
from trace_export.choices import (
    ColorBy as ColorBy,
)
from trace_export.choices import (
    CostName as CostName,
)
from trace_export.choices import (
    Detail as Detail,
)
from trace_export.choices import (
    Format as Format,
)
from trace_export.choices import (
    HeatMapFormat as HeatMapFormat,
)
from trace_export.choices import (
    Infer as Infer,
)
from trace_export.choices import (
    Legend as Legend,
)
from trace_export.choices import (
    OverviewFormat as OverviewFormat,
)
from trace_export.choices import (
    Table as Table,
)
from trace_export.choices import (
    Theme as Theme,
)
from trace_export.choices import (
    Tracks as Tracks,
)
from trace_export.clocks.fit import ClockFit as ClockFit
from trace_export.clocks.fit import fit_clocks as fit_clocks
from trace_export.clocks.problem import ClockSettings as ClockSettings
from trace_export.deprecated import (
    Exported as Exported,
)
from trace_export.deprecated import (
    Reported as Reported,
)
from trace_export.deprecated import (
    export as export,
)
from trace_export.deprecated import (
    report as report,
)
from trace_export.deprecated import (
    save_baseline as save_baseline,
)
from trace_export.errors import (
    AlignmentError as AlignmentError,
)
from trace_export.errors import (
    NothingToExportError as NothingToExportError,
)
from trace_export.errors import (
    OutputError as OutputError,
)
from trace_export.errors import (
    SourceError as SourceError,
)
from trace_export.errors import (
    TraceExportError as TraceExportError,
)
from trace_export.errors import (
    UsageError as UsageError,
)
from trace_export.inspection.inspect import Inspection as Inspection
from trace_export.live.look import Look as Look
from trace_export.live.step_figures import StepFigures as StepFigures
from trace_export.model import (
    Declared as Declared,
)
from trace_export.model import (
    Interpretation as Interpretation,
)
from trace_export.model import (
    KernelFile as KernelFile,
)
from trace_export.model import (
    Note as Note,
)
from trace_export.model import (
    Plan as Plan,
)
from trace_export.model import (
    Profile as Profile,
)
from trace_export.model import (
    Recognition as Recognition,
)
from trace_export.options import (
    Aligning as Aligning,
)
from trace_export.options import (
    Asking as Asking,
)
from trace_export.options import (
    Comparing as Comparing,
)
from trace_export.options import (
    Drawing as Drawing,
)
from trace_export.options import (
    Exporting as Exporting,
)
from trace_export.options import (
    Inspecting as Inspecting,
)
from trace_export.options import (
    Judging as Judging,
)
from trace_export.options import (
    Loading as Loading,
)
from trace_export.options import (
    Overviewing as Overviewing,
)
from trace_export.options import (
    Part as Part,
)
from trace_export.options import (
    Replacing as Replacing,
)
from trace_export.options import (
    Reporting as Reporting,
)
from trace_export.options import (
    Saving as Saving,
)
from trace_export.options import (
    Watching as Watching,
)
from trace_export.options import (
    Writing as Writing,
)
from trace_export.plot import Plot as Plot
from trace_export.progress import Progress as Progress
from trace_export.run import Run as Run
from trace_export.scale.build import Overview as Overview
from trace_export.schedules.simulate import Costs as Costs
from trace_export.selection import Window as Window
from trace_export.steps.path import CriticalPath as CriticalPath
from trace_export.writers.pictures.style import FigureStyle as FigureStyle

__version__: str
