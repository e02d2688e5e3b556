"""Chooses the profiler that takes the marks: that of the device which the framework in this process uses."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from trace_export.instrument.marks import Backend, Mark, Where

VARIABLE = "TRACE_EXPORT_MARKS"
"""Environment variable that names the backend: nvtx, torch, mstx, paddle or off."""

RECORD_VARIABLE = "TRACE_EXPORT_RECORD"
"""Environment variable that names the folder to record to (backends.block_recorder)."""

_BACKENDS = {
    "nvtx": ("nvtx", "Nvtx"),
    "torch": ("torch_profiler", "TorchProfiler"),
    "mstx": ("mstx", "Mstx"),
    "paddle": ("paddle", "Paddle"),
    "off": ("off", "Off"),
}
"""Name → module of this package and its class; imported when chosen."""

KINDS_OF_MARKS = tuple(_BACKENDS)


class Both:
    """NVTX for Nsight Systems and torch.profiler's own ranges; whichever records sees one of them.

    `emit_nvtx` turns the second into the first, so NVTX is left to it while it is on.
    """

    def __init__(self, nvtx: Backend, torch: Backend, profiler_type: Any, nvtx_type: Any) -> None:
        self.nvtx, self.torch = nvtx, torch
        self.profiler_type, self.nvtx_type = profiler_type, nvtx_type

    def begin(self, mark: Mark, where: Where) -> Any:
        pushed = self.profiler_type() != self.nvtx_type
        if pushed:
            self.nvtx.begin(mark, where)
        return pushed, self.torch.begin(mark, where)

    def end(self, token: Any) -> None:
        pushed, range_ = token
        self.torch.end(range_)
        if pushed:
            self.nvtx.end(None)


def choose(name: str | None = None) -> Backend | None:
    """What takes the marks: the profiler that `profiler` chooses, and the recorder where the environment names a folder
    for it; None where there is neither. Raises as `profiler` does."""
    return recorded(profiler(name))


def recorded(backend: Backend | None) -> Backend | None:
    """`backend`, or where blocks are to be recorded a recorder that also passes the marks on to it."""
    folder = os.environ.get(RECORD_VARIABLE)
    if not folder:
        return backend
    made: Backend = importlib.import_module(f"{__name__}.block_recorder").BlockRecorder(folder, backend)
    return made


def profiler(name: str | None = None) -> Backend | None:
    """The backend called `name` (default: the environment's), else the loaded framework's; None when there is none.

    Raises ValueError for an unknown name, ImportError or AttributeError when the named one is not there.
    """
    name = name or os.environ.get(VARIABLE)
    if name is not None:
        return _named(name)
    if "torch_npu" in sys.modules:
        return _named("mstx")
    if "torch" in sys.modules:
        return _for_torch()
    if "mindspore" in sys.modules:
        return _named("mstx")
    if "paddle" in sys.modules:
        return _named("paddle")
    try:
        return _named("nvtx")
    except ImportError:
        return None


def _for_torch() -> Backend:
    torch: Any = sys.modules["torch"]
    if not torch.cuda.is_available():
        return _named("torch")
    autograd = torch._C._autograd
    return Both(_named("nvtx"), _named("torch"), autograd._profiler_type, autograd.ActiveProfilerType.NVTX)


def _named(name: str) -> Backend:
    if name not in _BACKENDS:
        raise ValueError(f'"{name}" is not a kind of marks, choose from {", ".join(KINDS_OF_MARKS)}')
    module, kind = _BACKENDS[name]
    backend: Backend = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    return backend
