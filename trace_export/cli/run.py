"""`trace-export run -- COMMAND`: run a training command with every block of its pipeline marked for the profiler."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Unpack

from trace_export import instrument
from trace_export.errors import UsageError
from trace_export.instrument.backends import RECORD_VARIABLE, VARIABLE
from trace_export.options import RunCommand

STARTUP = Path(instrument.__file__).parent / "startup"


def run(**given: Unpack[RunCommand]) -> None:
    """Run a training command with its pipeline's blocks marked, without a change to the script.

    Every Python process that the command starts marks the forward, backward, weight-gradient and optimizer blocks of
    Megatron-Core, torch.distributed.pipelining, DeepSpeed and MindSpeed. A profiler must record them: put it before or
    after, `nsys profile … trace-export run -- torchrun …`. `trace-export docs` lists the guides for each profiler.
    With --record no profiler is needed; `trace-export docs recorder` says more.
    """
    command, marks, record = given["command"], given["marks"], given["record"]
    path = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    if marks != "auto":
        environment[VARIABLE] = marks
    if record is not None:
        environment[RECORD_VARIABLE] = str(record.absolute())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        # In place of this process, so that signals, exit code and terminal are the command's own.
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise UsageError(f"{command[0]}: {error.strerror}", "give the command as you would type it") from error
