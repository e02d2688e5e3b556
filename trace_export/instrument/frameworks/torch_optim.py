"""The optimizer block of every program that uses torch.optim, by PyTorch's hooks for all optimizers (since 2.0).

A framework that wraps its own optimizer step around PyTorch's has begun the block already; then this one does not.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from trace_export.instrument import marks
from trace_export.instrument.frameworks.patching import UnknownVersion
from trace_export.instrument.marks import Mark

_installed: list[Any] = []


def patch(module: ModuleType) -> None:
    if not hasattr(module, "register_optimizer_step_pre_hook"):
        raise UnknownVersion("register_optimizer_step_pre_hook is missing")
    if not _installed:
        _installed.append(module.register_optimizer_step_pre_hook(_begin))
        _installed.append(module.register_optimizer_step_post_hook(_end))


_opened: dict[int, marks.Open | None] = {}


def _begin(optimizer: Any, args: Any, kwargs: Any) -> None:
    # The second hook is not called when the step raises, hence lingering.
    _opened[id(optimizer)] = marks.begin(Mark("OPT"), lingering=True)


def _end(optimizer: Any, args: Any, kwargs: Any) -> None:
    marks.end(_opened.pop(id(optimizer), None))
