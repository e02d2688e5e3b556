"""The options of the commands: those that several commands share, with the names of the API's parameters.

Each file has one part of a command's help, `groups` puts them together.
"""

from trace_export.cli.options.clocks import Align, Clocks
from trace_export.cli.options.groups import spelled, with_groups
from trace_export.cli.options.input import (
    ColumnMap,
    FollowLinks,
    MultiMachine,
    Passes,
    Place,
    Sizes,
    Source,
    one_folder,
)
from trace_export.cli.options.output import Charting, Drawing, Force, Formats, Gzip, Tables
from trace_export.cli.options.pictures import Figures
from trace_export.cli.options.printing import Debug, Json, Printing, Quiet, Verbose
from trace_export.cli.options.selection import Cache, Devices, Ranks, RunNumber, Selection, Stages, Steps, Time
from trace_export.cli.options.words import CLOCKS, INPUT, OUTPUT, PICTURES, SELECTION, TERMINAL, WORKERS
from trace_export.cli.options.workers import Jobs, Scheduler, Workers

__all__ = [
    "CLOCKS",
    "INPUT",
    "OUTPUT",
    "PICTURES",
    "SELECTION",
    "TERMINAL",
    "WORKERS",
    "Align",
    "Cache",
    "Charting",
    "Clocks",
    "ColumnMap",
    "Debug",
    "Devices",
    "Drawing",
    "Figures",
    "FollowLinks",
    "Force",
    "Formats",
    "Gzip",
    "Jobs",
    "Json",
    "MultiMachine",
    "Passes",
    "Place",
    "Printing",
    "Quiet",
    "Ranks",
    "RunNumber",
    "Scheduler",
    "Selection",
    "Sizes",
    "Source",
    "Stages",
    "Steps",
    "Tables",
    "Time",
    "Verbose",
    "Workers",
    "one_folder",
    "spelled",
    "with_groups",
]  # fmt: skip
