"""Marks for Paddle: a RecordEvent for Paddle's own profiler, and on CUDA an NVTX range for Nsight Systems."""

from __future__ import annotations

import importlib
from typing import Any

from trace_export.instrument.marks import Mark, Where, text


class Paddle:
    """Raises ImportError when Paddle is not there."""

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
