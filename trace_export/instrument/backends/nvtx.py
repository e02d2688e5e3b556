"""Marks for Nsight Systems: NVTX push/pop ranges, through PyTorch's binding or else the `nvtx` package."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from trace_export.instrument.marks import Mark, Where, text


class Nvtx:
    """Raises ImportError when neither binding is there."""

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
