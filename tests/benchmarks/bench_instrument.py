"""What a mark costs the training run, in microseconds for its begin and end together.

    python tests/benchmarks/bench_instrument.py

Compared in the same run with an empty context manager, and where PyTorch is installed with its `record_function`.
"""

from __future__ import annotations

import contextlib
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import trace_export.instrument as ti
from trace_export.instrument import marks
from trace_export.instrument.backends import choose
from trace_export.instrument.frameworks import patching
from trace_export.instrument.marks import Mark

LIMIT_US = 5.0
CALLS, ROUNDS = 20_000, 5


def best_us(run: Callable[[int], object]) -> float:
    """The fastest round's time per call."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for i in range(CALLS):
            run(i & 63)
        rounds.append(time.perf_counter() - start)
    return min(rounds) / CALLS * 1e6


def marked(i: int) -> None:
    with ti.forward(microbatch=i, chunk=1, stage=2):
        pass


def patched() -> Callable[[int], object]:
    """A framework's function with its block, as `auto` makes it."""
    owner = types.SimpleNamespace(run=lambda i: i)
    patching.replace(owner, "run", patching.block(lambda i: Mark("F", i, 1, stage=2)))
    run: Callable[[int], object] = owner.run
    return run


def use(name: str) -> None:
    marks.state.backend = choose(name)
    marks.state.off = marks.state.backend is None


def main() -> None:
    nvtx: Any = types.ModuleType("nvtx")
    nvtx.push_range, nvtx.pop_range = lambda name: None, lambda: None

    def empty(i: int) -> None:
        with contextlib.nullcontext():
            pass

    results = {"empty context manager": best_us(empty)}
    marks.state.off = True
    results["forward(), marks off"] = best_us(marked)
    sys.modules["nvtx"] = nvtx
    use("nvtx")
    results["forward(), NVTX stub"] = best_us(marked)
    results["patched function, NVTX stub"] = best_us(patched()) - best_us(lambda i: i)
    with contextlib.suppress(ImportError):
        results |= torch_results()
    for name, cost in results.items():
        print(f"{name:44} {cost:6.2f} µs  {cost / LIMIT_US:5.2f} of the limit of {LIMIT_US:g} µs")


def torch_results() -> dict[str, float]:
    import torch
    from torch.profiler import profile, record_function

    def recorded(i: int) -> None:
        with record_function("forward"):
            pass

    use("torch")
    found = {"forward(), torch.profiler idle": best_us(marked), "record_function, idle": best_us(recorded)}
    with profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        found["forward(), torch.profiler recording"] = best_us(marked)
        found["record_function, recording"] = best_us(recorded)
    return found


if __name__ == "__main__":
    main()
