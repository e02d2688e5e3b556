"""Marks for torch.profiler (Kineto traces), and under `emit_nvtx` for Nsight Systems: PyTorch's own ranges."""

from __future__ import annotations

import importlib
from typing import Any

from trace_export.instrument.marks import Mark, Where, text


class TorchProfiler:
    """The C++ range (0.4 µs while no profiler runs), or `record_function` (10 µs) in PyTorch before 2.1."""

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
