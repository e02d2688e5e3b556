"""Megatron-Core: 1F1B, interleaved 1F1B and no pipelining all run through `forward_step` and `backward_step`.

A forward gets its micro-batch and chunk as arguments. A backward gets neither, but the same output object that the
forward returned, which identifies its numbers; the schedule need not be known.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

from trace_export.instrument import marks
from trace_export.instrument.frameworks.patching import (
    InFlight,
    UnknownVersion,
    argument,
    block,
    replace,
    schedule_pass,
)
from trace_export.instrument.marks import Mark

IN_FLIGHT = InFlight()
_stage: int | None = None

_PASSES = (
    "forward_backward_no_pipelining",
    "forward_backward_pipelining_with_interleaving",
    "forward_backward_pipelining_without_interleaving",
)

_PLACES = {
    "pp_size": "get_pipeline_model_parallel_world_size",
    "dp_size": "get_data_parallel_world_size",
    "tp_size": "get_tensor_model_parallel_world_size",
    "cp_size": "get_context_parallel_world_size",
    "dp": "get_data_parallel_rank",
    "tp": "get_tensor_model_parallel_rank",
    "cp": "get_context_parallel_rank",
}
"""What parallel_state knows of this rank's place, and the function that says it."""


def stage() -> int | None:
    """This rank's place in its pipeline, as of the pass that runs."""
    return _stage


def prepare(*args: Any, **kwargs: Any) -> None:
    """A pass starts: nothing is in flight, and the groups stand."""
    global _stage
    IN_FLIGHT.clear()
    communicator, groups = kwargs.get("p2p_communicator"), kwargs.get("pg_collection")
    group = communicator.pp_group if communicator is not None else getattr(groups, "pp", None)
    parallel_state: Any = sys.modules["megatron.core.parallel_state"]
    if group is not None:
        _stage = group.rank()
    elif parallel_state.model_parallel_is_initialized():
        _stage = parallel_state.get_pipeline_model_parallel_rank()
        for name, function in _PLACES.items():
            with suppress(AttributeError, AssertionError):  # not in this version, or no such group
                marks.state.layout[name] = int(getattr(parallel_state, function)())


def patch_schedules(module: ModuleType) -> None:
    for name in _PASSES:
        replace(module, name, schedule_pass(prepare))
    current_microbatch = argument(module.forward_step, "current_microbatch")
    vp_stage = argument(module.forward_step, "vp_stage")
    output_tensor = argument(module.backward_step, "output_tensor")

    def forward(*args: Any, **kwargs: Any) -> Mark:
        return Mark("F", current_microbatch(args, kwargs), _chunk(vp_stage(args, kwargs)), stage=_stage)

    def backward(*args: Any, **kwargs: Any) -> Mark:
        return Mark("B", *IN_FLIGHT.recall(output_tensor(args, kwargs)), stage=_stage)

    replace(module, "forward_step", block(forward, _remember), needs=("current_microbatch",))
    replace(module, "backward_step", block(backward), needs=("output_tensor",))
    if hasattr(module, "finish_embedding_wgrad_compute"):
        replace(module, "finish_embedding_wgrad_compute", block(_embedding_weight))


def patch_combined(module: ModuleType) -> None:
    """The fused step of `overlap_moe_expert_parallel_comm`: a forward and a backward, or only one of them."""
    step = module.combined_forward_backward_step
    f_model, b_model = argument(step, "f_model"), argument(step, "b_model")
    microbatch, chunk = argument(step, "current_microbatch"), argument(step, "f_model_chunk_id")
    b_output_tensor = argument(step, "b_output_tensor")

    def combined(*args: Any, **kwargs: Any) -> Mark:
        forward = (microbatch(args, kwargs), _chunk(chunk(args, kwargs)))
        backward = IN_FLIGHT.recall(b_output_tensor(args, kwargs))
        if b_model(args, kwargs) is None:
            return Mark("F", *forward, stage=_stage)
        if f_model(args, kwargs) is None:
            return Mark("B", *backward, stage=_stage)
        return Mark("FB", *forward, *backward, stage=_stage)

    replace(module, "combined_forward_backward_step", block(combined, _remember), needs=("f_model", "b_model"))


def patch_optimizer(module: ModuleType) -> None:
    classes = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and c.__module__ == module.__name__ and "step" in vars(c)
    ]
    if not classes:
        raise UnknownVersion("no optimizer has a step")
    for optimizer in classes:
        replace(optimizer, "step", block(lambda *args, **kwargs: Mark("OPT")))


def _remember(mark: Mark, result: Any) -> None:
    if mark.kind != "B":
        IN_FLIGHT.remember(result[0], mark.microbatch, mark.chunk)


def _chunk(vp_stage: int | None) -> int:
    """Versions before 0.13 keep the chunk in the parallel state instead of passing it."""
    if vp_stage is not None:
        return vp_stage
    parallel_state = sys.modules.get("megatron.core.parallel_state")
    virtual_rank: Any = getattr(parallel_state, "get_virtual_pipeline_model_parallel_rank", lambda: None)
    return virtual_rank() or 0


def _embedding_weight(config: Any, embedding_module: Any, is_last_stage: bool = True, *args: Any) -> Mark | None:
    return Mark("W", stage=_stage) if is_last_stage and config.defer_embedding_wgrad_compute else None
