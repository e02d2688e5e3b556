"""The profilers that take the marks, and the choice of one: that of the device which the framework here uses."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from trace_export.instrument.backends.mstx import Mstx
from trace_export.instrument.marks import Backend, Mark, Where, text

VARIABLE = "TRACE_EXPORT_MARKS"
"""Environment variable that names the backend: nvtx, torch, mstx, paddle or off."""

RECORD_VARIABLE = "TRACE_EXPORT_RECORD"
"""Environment variable that names the folder to record to (backends.block_recorder)."""


class Nvtx:
    """NVTX push/pop ranges for Nsight Systems, through PyTorch's binding or else the `nvtx` package. Raises ImportError
    where neither is there."""

    def __init__(self) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is not None and (torch.version.cuda or torch.version.hip):
            self._push, self._pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
        else:
            nvtx: Any = importlib.import_module("nvtx")
            self._push, self._pop = nvtx.push_range, nvtx.pop_range

    def begin(self, mark: Mark, where: Where) -> None:
        self._push(text(mark, where))

    def end(self, token: None) -> None:
        self._pop()


class TorchProfiler:
    """PyTorch's own ranges, for torch.profiler, and under `emit_nvtx` for Nsight Systems: the C++ range (0.4 µs while
    no profiler runs), or `record_function` (10 µs) in PyTorch before 2.1."""

    def __init__(self) -> None:
        profiler: Any = importlib.import_module("torch._C._profiler")
        slow: Any = importlib.import_module("torch.autograd.profiler").record_function
        self._range = getattr(profiler, "_RecordFunctionFast", slow)

    def begin(self, mark: Mark, where: Where) -> Any:
        opened = self._range(text(mark, where))
        opened.__enter__()
        return opened

    def end(self, token: Any) -> None:
        token.__exit__(None, None, None)


class Paddle:
    """A RecordEvent for Paddle's own profiler, and on CUDA an NVTX range for Nsight Systems. Raises ImportError where
    Paddle is not there."""

    def __init__(self) -> None:
        paddle: Any = importlib.import_module("paddle")
        self._event = importlib.import_module("paddle.profiler").RecordEvent
        core = importlib.import_module("paddle.base.core") if paddle.device.is_compiled_with_cuda() else None
        self._push = getattr(core, "nvprof_nvtx_push", None)
        self._pop = getattr(core, "nvprof_nvtx_pop", None)

    def begin(self, mark: Mark, where: Where) -> Any:
        name = text(mark, where)
        if self._push is not None:
            self._push(name)
        event = self._event(name)
        event.begin()
        return event

    def end(self, token: Any) -> None:
        token.end()
        if self._pop is not None:
            self._pop()


class Off:
    """Drops the marks, for a run that shall not be marked although its script says so."""

    def begin(self, mark: Mark, where: Where) -> None:
        pass

    def end(self, token: None) -> None:
        pass


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


_BACKENDS: dict[str, Callable[[], Backend]] = {
    "nvtx": Nvtx, "torch": TorchProfiler, "mstx": Mstx, "paddle": Paddle, "off": Off,
}  # fmt: skip
"""What makes each; it imports the profiler's own package."""

KINDS_OF_MARKS = tuple(_BACKENDS)


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
    return _BACKENDS[name]()
