"""MindSpeed's DualPipeV: the functions that Ascend's guide wraps by hand, with the numbers that the guide leaves out.

Chunk 0 counts its micro-batches 0 … M-1 and chunk 1 M … 2M-1; a mark counts within the chunk. A backward is known by
the model graph, or without one by the output, that its forward returned; `backward_step` is Megatron's own, and marked
there if it was patched first. A weight block belongs to the backward that
queued it. Weight work inside a backward or an overlapped block is part of that block.
"""

from __future__ import annotations

from collections import deque
from types import ModuleType
from typing import Any

from trace_export.instrument.frameworks import megatron
from trace_export.instrument.frameworks.patching import argument, block, replace, schedule_pass
from trace_export.instrument.marks import Mark

_queued: deque[tuple[int | None, int | None]] = deque()


def patch(module: ModuleType) -> None:
    replace(module, "forward_backward_pipelining_with_cutinhalf", schedule_pass(_prepare))
    for name in ("forward_step_with_model_graph", "forward_step_no_model_graph"):
        forward = block(_forward(getattr(module, name), name), _remember)
        replace(module, name, forward, needs=("model_chunk_id", "num_microbatches", "current_microbatch"))
    for name in ("backward_step_with_model_graph", "backward_step"):
        backward = block(_backward(getattr(module, name), name))
        replace(module, name, backward, needs=("output_tensor",))
    _patch_store(module.WeightGradStore)


def _prepare(*args: Any, **kwargs: Any) -> None:
    megatron.prepare()
    _queued.clear()


def _forward(function: Any, name: str) -> Any:
    model_chunk, microbatches = argument(function, "model_chunk_id"), argument(function, "num_microbatches")
    current, extra = argument(function, "current_microbatch"), argument(function, "extra_block_kwargs")

    def describe(*args: Any, **kwargs: Any) -> Mark:
        chunk, microbatch = model_chunk(args, kwargs), current(args, kwargs)
        if chunk == 1:
            microbatch -= microbatches(args, kwargs)
        overlapped = extra(args, kwargs)
        if overlapped is None:
            return Mark("F", microbatch, chunk, stage=megatron.stage(), name=name)
        backward = megatron.IN_FLIGHT.recall(overlapped["bwd_model_graph"])
        return Mark("FB", microbatch, chunk, *backward, stage=megatron.stage())

    return describe


def _remember(mark: Mark, result: Any) -> None:
    output = result[0][0] if isinstance(result[0], list) else result[0]
    if isinstance(output, tuple):  # (output, model graph) or (output, model graph, communication)
        megatron.IN_FLIGHT.remember(output[1], mark.microbatch, mark.chunk)
        output = output[0]
    megatron.IN_FLIGHT.remember(output, mark.microbatch, mark.chunk)


def _backward(function: Any, name: str) -> Any:
    output_tensor, model_graph = argument(function, "output_tensor"), argument(function, "model_graph")

    def describe(*args: Any, **kwargs: Any) -> Mark:
        graph, output = model_graph(args, kwargs), output_tensor(args, kwargs)
        # The backward of the loss head comes first, with the same output and no graph: the output stays known.
        numbers = megatron.IN_FLIGHT.recall(output, keep=True) if graph is None else megatron.IN_FLIGHT.recall(graph)
        return Mark("B", *numbers, stage=megatron.stage(), name=name)

    return describe


def _patch_store(store: Any) -> None:
    """`pop` runs the weight work of the last backward; `flush_chunk_grad` queues it, `pop_single` runs the oldest."""

    def pop(cls: Any, *args: Any, **kwargs: Any) -> Mark | None:
        if not cls.cache:
            return None
        return Mark("W", *megatron.IN_FLIGHT.last, stage=megatron.stage(), name="WeightGradStore.pop")

    def pop_single(cls: Any, *args: Any, **kwargs: Any) -> Mark | None:
        waiting = cls.weight_grad_queue.queue
        numbers = _queued.popleft() if _queued else (None, None)
        if not waiting or not waiting[0]:
            return None
        return Mark("W", *numbers, stage=megatron.stage(), name="WeightGradStore.pop")

    def flush(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            _queued.append(megatron.IN_FLIGHT.last)
            return function(*args, **kwargs)

        return call

    replace(store, "pop", block(pop))
    replace(store, "pop_single", block(pop_single))
    replace(store, "flush_chunk_grad", flush)
