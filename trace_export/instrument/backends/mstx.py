"""Marks for Ascend: MSTX ranges on the current stream, whose message is a dict in the form that Ascend's guide uses.

`{'name': 'forward_step', 'current_microbatch': 3, 'chunk': 0, 'step': 7, 'stage': 1, 'rank': 5}`: msprof-analyze's
pp_chart reads the name and passes over the rest. `current_microbatch` counts within the chunk wherever the chunk is
given. CANN truncates messages (at 128 bytes in older versions, 156 in newer ones): a longer one loses its last fields,
which the profiler records by its own means.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from trace_export.instrument.marks import Mark, Where

LONGEST = 128

_NAMES = {
    "F": "forward_step",
    "B": "backward_step",
    "W": "WeightGradStore.pop",
    "FB": "forward_backward_overlaping",
    "OPT": "optimizer_step",
}


def message(mark: Mark, where: Where) -> str:
    """`mark` as MSTX carries it."""
    fields = {
        "name": mark.name or _NAMES.get(mark.kind, f"step {where.step}"),
        "current_microbatch": mark.microbatch,
        "chunk": mark.chunk,
        "microbatch_b": mark.microbatch_b,
        "chunk_b": mark.chunk_b,
        "step": where.step,
        "stage": where.stage,
        "rank": where.rank,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    written = str(given)
    while len(written) > LONGEST:
        given.popitem()
        written = str(given)
    return written


class Mstx:
    """torch_npu's MSTX, else MindSpore's. Raises ImportError when neither is there."""

    def __init__(self) -> None:
        if "torch_npu" in sys.modules or "mindspore" not in sys.modules:
            npu: Any = importlib.import_module("torch_npu").npu
            self._mstx, self._stream = npu.mstx, npu.current_stream
        else:
            mindspore: Any = sys.modules["mindspore"]
            self._mstx = importlib.import_module("mindspore.profiler").mstx
            self._stream = getattr(mindspore, "runtime", mindspore).current_stream

    def begin(self, mark: Mark, where: Where) -> int:
        stream = None if mark.kind == "STEP" else self._stream()
        opened: int = self._mstx.range_start(message(mark, where), stream)
        return opened

    def end(self, token: int) -> None:
        if token:  # 0 says that no range was opened
            self._mstx.range_end(token)
