"""What a mark and a recorded block cost the training run, in microseconds for begin and end together.

    python -m tests.benchmarks.bench_instrument

Compared in the same run with an empty context manager, and where PyTorch is installed with its `record_function`.
"""

import argparse
import contextlib
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import trace_export.instrument as ti
from tests.benchmarks import table
from tests.benchmarks.measure import Amount
from tests.benchmarks.table import Row
from trace_export.instrument import marks
from trace_export.instrument.backends import choose
from trace_export.instrument.backends.block_recorder import BlockRecorder
from trace_export.instrument.frameworks import patching
from trace_export.instrument.marks import Mark

AIM_US, AIM_RECORDED_US = 5.0, 3.0
CALLS, ROUNDS = 20_000, 5


def best_us(run: Callable[[int], object]) -> float:
    """The fastest round's time of the processor per call."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for i in range(CALLS):
            run(i & 63)
        rounds.append(time.process_time() - start)
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


def rows(options: argparse.Namespace) -> Iterator[Row]:
    nvtx: Any = types.ModuleType("nvtx")
    nvtx.push_range, nvtx.pop_range = lambda name: None, lambda: None

    def empty(i: int) -> None:
        with contextlib.nullcontext():
            pass

    unit = best_us(empty)
    sys.modules["nvtx"] = nvtx
    use("nvtx")
    results = {"NVTX stub": best_us(marked)}
    results["patched function, NVTX stub"] = best_us(patched()) - best_us(lambda i: i)
    with contextlib.suppress(ImportError):
        results |= torch_results()
    for name, cost in results.items():
        yield Row(f"a mark: {name}", Amount(cost, "µs"), aim=AIM_US)
    yield Row("a mark: NVTX stub", Amount(results["NVTX stub"], "µs"), "empty context manager", Amount(unit, "µs"))
    with tempfile.TemporaryDirectory() as folder:
        marks.state.backend = BlockRecorder(folder, None)
        yield Row("a block: recorder", Amount(best_us(marked), "µs"), aim=AIM_RECORDED_US)


def torch_results() -> dict[str, float]:
    import torch
    from torch.profiler import profile, record_function

    def recorded(i: int) -> None:
        with record_function("forward"):
            pass

    use("torch")
    with profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return {"torch.profiler recording": best_us(marked), "record_function, recording": best_us(recorded)}


if __name__ == "__main__":
    table.main(rows, table.parser(__doc__).parse_args())
