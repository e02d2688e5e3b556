"""One file per framework: which of its functions are which blocks, and where their numbers are found."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from trace_export.instrument.frameworks import deepspeed, megatron, mindspeed, torch_optim, torch_pipelining
from trace_export.instrument.frameworks.patching import guarded
from trace_export.instrument.imports import when_imported

_PATCHES: tuple[tuple[str, str, Callable[[ModuleType], None]], ...] = (
    ("torch", "torch.optim.optimizer", torch_optim.patch),
    ("torch", "torch.distributed.pipelining.stage", torch_pipelining.patch_stage),
    ("torch", "torch.distributed.pipelining.schedules", torch_pipelining.patch_schedules),
    ("megatron.core", "megatron.core.pipeline_parallel.schedules", megatron.patch_schedules),
    ("megatron.core", "megatron.core.pipeline_parallel.combined_1f1b", megatron.patch_combined),
    ("megatron.core", "megatron.core.optimizer.optimizer", megatron.patch_optimizer),
    ("deepspeed", "deepspeed.runtime.pipe.engine", deepspeed.patch),
    ("mindspeed", "mindspeed.core.pipeline_parallel.dualpipev.dualpipev_schedules", mindspeed.patch),
)
"""Framework (whose version is named when the patch does not fit), module, and what to do to it."""


def patch_all() -> None:
    """Patches what is imported, and the rest when it will be."""
    for framework, module, patch in _PATCHES:
        when_imported(module, guarded(framework, patch))
