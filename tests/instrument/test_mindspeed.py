"""MindSpeed's DualPipeV. It needs Ascend's libraries to import, so a stand-in with its functions' signatures, and its
way of passing outputs, model graphs and weight work from one to the next, runs the published order here."""

import ast
import queue
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest

from samples.generators import ascend_export
from tests.conftest import Cli
from trace_export.instrument import marks
from trace_export.instrument.backends import mstx
from trace_export.instrument.backends.recorder import Recorder
from trace_export.instrument.frameworks import megatron, mindspeed
from trace_export.schedules.schedule import schedule

MODULE = "mindspeed.core.pipeline_parallel.dualpipev.dualpipev_schedules"
STAGES, MICROBATCHES = 3, 8


class Tensor:
    """Something with an identity."""


class WeightGradStore:
    cache: ClassVar[list[Tensor]] = []
    weight_grad_queue: ClassVar["queue.Queue[list[Tensor]]"] = queue.Queue()

    @classmethod
    def flush_chunk_grad(cls) -> None:
        cls.weight_grad_queue.put(cls.cache)
        cls.cache = []

    @classmethod
    def pop(cls, overlap_arg: Any = None) -> None:
        cls.cache = []

    @classmethod
    def pop_single(cls) -> None:
        if not cls.weight_grad_queue.empty():
            cls.cache = cls.weight_grad_queue.get()
            cls.pop()


def forward_step_with_model_graph(
    forward_step_func: Any, model_chunk_id: int, data_iterator: Any, model: Any, num_microbatches: int,
    input_tensor: Any, forward_data_store: Any, config: Any, collect_non_loss_data: bool = False,
    checkpoint_activations_microbatch: Any = None, is_first_microbatch: bool = False,
    current_microbatch: int | None = None, extra_block_kwargs: Any = None,
) -> Any:  # fmt: skip
    if extra_block_kwargs is None:
        return (Tensor(), Tensor()), 0
    store.cache = [Tensor()]
    store.pop()  # weight work inside an overlapped block
    return (Tensor(), Tensor(), Tensor()), 0


def forward_step_no_model_graph(
    forward_step_func: Any, model_chunk_id: int, data_iterator: Any, model: Any, num_microbatches: int,
    input_tensor: Any, forward_data_store: Any, config: Any, collect_non_loss_data: bool = False,
    checkpoint_activations_microbatch: Any = None, is_first_microbatch: bool = False,
    current_microbatch: int | None = None,
) -> Any:  # fmt: skip
    return [Tensor()], 0


def backward_step_with_model_graph(
    input_tensor: Any,
    output_tensor: Any,
    output_tensor_grad: Any,
    model_type: Any,
    config: Any,
    model_graph: Any = None,
) -> Tensor:
    return Tensor()


def backward_step(
    input_tensor: Any, output_tensor: Any, output_tensor_grad: Any, model_type: Any, config: Any
) -> Tensor:
    return Tensor()


store: Any = None


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in, patched, as rank 0 of a pipeline."""
    global store
    monkeypatch.setattr(marks, "state", marks._State())
    fake: Any = types.ModuleType(MODULE)
    for function in (forward_step_with_model_graph, forward_step_no_model_graph, backward_step_with_model_graph):
        setattr(fake, function.__name__, function)
    fake.backward_step = backward_step
    fake.forward_backward_pipelining_with_cutinhalf = lambda run: run()
    store = fake.WeightGradStore = type("WeightGradStore", (WeightGradStore,), {**vars(WeightGradStore)})
    parallel_state: Any = types.ModuleType("megatron.core.parallel_state")
    parallel_state.model_parallel_is_initialized = lambda: True
    parallel_state.get_pipeline_model_parallel_rank = lambda: 0
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", parallel_state)
    mindspeed.patch(fake)
    marks.state.backend = Recorder()
    yield fake


def forward(module: Any, name: str, microbatch: int, chunk: int, **extra: Any) -> Any:
    function = getattr(module, name)
    current = microbatch + chunk * MICROBATCHES
    result, _ = function(None, chunk, None, None, MICROBATCHES, None, [], None, current_microbatch=current, **extra)
    return result


def recorded() -> list[tuple[Any, ...]]:
    backend = marks.state.backend
    assert isinstance(backend, Recorder)
    return [(m.mark.kind, m.mark.microbatch, m.mark.chunk, m.mark.microbatch_b, m.mark.chunk_b) for m in backend.marks]


def overlapped_step(module: Any, stage: int) -> list[tuple[Any, ...]]:
    """Runs a rank's order through the stand-in as the runtime would; what the marks must be."""
    alive: dict[tuple[int, int], Any] = {}
    expected: list[tuple[Any, ...]] = []
    rows = schedule("dualpipev", STAGES, MICROBATCHES).ops.filter(stage=stage).to_dicts()
    for row in rows:
        kind, number = row["kind"], (row["microbatch"], row["chunk"])
        back = (row["microbatch_b"], row["chunk_b"]) if kind == "FB" else number
        if kind in ("B", "FB") and stage == 0 and back[1] == 1:
            module.backward_step_with_model_graph(None, alive[back][0], None, None, None, None)
            expected.append(("B", *back, None, None))
        if kind == "F":
            alive[number] = forward(module, "forward_step_with_model_graph", *number)
        elif kind == "FB":
            extra = {"bwd_model_graph": alive.pop(back)[1]}
            alive[number] = forward(module, "forward_step_with_model_graph", *number, extra_block_kwargs=extra)
        elif kind == "B":
            output, graph, *_ = alive.pop(number)
            module.backward_step_with_model_graph(None, output, None, None, None, model_graph=graph)
            store.cache = [] if row["full"] else [Tensor()]
            if row["phase"] == "cool-down" or row["phase"] == "interleaved backward":
                store.flush_chunk_grad()
        elif row["phase"] == "1b1w1f":
            store.pop()
        else:
            while not store.weight_grad_queue.queue[0]:
                store.pop_single()  # nothing was queued by this backward: no block
            store.pop_single()
        expected.append((kind, *number, *(back if kind == "FB" else (None, None))))
    return expected


@pytest.mark.parametrize("stage", range(STAGES))
def test_overlapped_blocks_have_all_numbers(module: Any, stage: int) -> None:
    expected: list[tuple[Any, ...]] = []
    module.forward_backward_pipelining_with_cutinhalf(lambda: expected.extend(overlapped_step(module, stage)))
    assert recorded() == expected
    assert {kind for kind, *_ in expected} == {"F", "B", "W", "FB"}
    assert store.weight_grad_queue.empty()


@pytest.mark.parametrize("patched_first", [False, True])
def test_blocks_without_overlap(module: Any, patched_first: bool) -> None:
    """`backward_step` comes from Megatron, where it may have its marks already."""
    if patched_first:
        module.backward_step = megatrons_backward_step()
        mindspeed.patch(module)
    module.forward_backward_pipelining_with_cutinhalf(lambda: None)
    first = forward(module, "forward_step_no_model_graph", 0, 0)
    second = forward(module, "forward_step_no_model_graph", 2, 1)
    module.backward_step(None, second, None, None, None)
    store.cache = [Tensor()]
    store.pop()
    module.backward_step(None, first, None, None, None)
    expected = [("F", 0, 0), ("F", 2, 1), ("B", 2, 1), ("W", 2, 1), ("B", 0, 0)]
    assert recorded() == [(*numbers, None, None) for numbers in expected]
    backend = marks.state.backend
    assert isinstance(backend, Recorder)
    names = [ast.literal_eval(mstx.message(m.mark, m.where))["name"] for m in backend.marks]
    forwards, others = ["forward_step_no_model_graph"] * 2, ["backward_step", "WeightGradStore.pop", "backward_step"]
    assert names == forwards + others


def megatrons_backward_step() -> Any:
    """As Megatron's schedules have it once they are patched."""
    schedules: Any = types.ModuleType("megatron.core.pipeline_parallel.schedules")
    for way in ("no_pipelining", "pipelining_with_interleaving", "pipelining_without_interleaving"):
        setattr(schedules, f"forward_backward_{way}", lambda run: run())
    schedules.forward_step = lambda data, current_microbatch=None, vp_stage=None: (Tensor(), 0)
    # A function of its own: what is patched once is not patched again.
    schedules.backward_step = types.FunctionType(backward_step.__code__, globals(), "backward_step")
    megatron.patch_schedules(schedules)
    return schedules.backward_step


@pytest.mark.parametrize("described", [True, False])
def test_the_marks_come_back_from_an_ascend_profile(module: Any, tmp_path: Path, run_cli: Cli, described: bool) -> None:
    """Two steps of all ranks, as torch_npu's database holds the messages, with and without the cluster's metadata."""
    expected = []
    about: dict[str, Any] = {"pp_info": {"pp_type": "dualpipev", "microbatch_num": MICROBATCHES}} if described else {}
    for rank in range(STAGES):
        parallel_state: Any = sys.modules["megatron.core.parallel_state"]
        parallel_state.get_pipeline_model_parallel_rank = partial(int, rank)
        marks.state = marks._State()
        recorder = marks.state.backend = Recorder()
        for _ in range(2):
            module.forward_backward_pipelining_with_cutinhalf(partial(overlapped_step, module, rank))
        rows = []
        for i, m in enumerate(recorder.marks):
            at = 10**18 + i * 1_000_000
            rows.append(ascend_export.Mark(mstx.message(m.mark, m.where), at, at + 900_000, at - 500_000, at - 400_000))
            numbers = m.mark.microbatch, m.mark.chunk, m.mark.microbatch_b, m.mark.chunk_b
            expected.append((rank, rank, m.where.step, m.mark.kind, *numbers))
        recording = ascend_export.Recording(rank, rank, "node0", about, marks=rows)
        recording.kernels = [(0, ascend_export.Kernel("MatMulV3", r.start_ns + 9, r.end_ns - 9)) for r in rows]
        ascend_export.write_database(recording, tmp_path / f"node0_{rank}_2025112712000000{rank}_ascend_pt")
    done = run_cli("--log_dir", tmp_path, "--format", "parquet", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    frame = pl.read_parquet(tmp_path / "out" / "pipeline_profile.parquet").sort("rank", "start_ns")
    columns = ["rank", "stage", "step", "kind", "microbatch", "chunk", "microbatch_b", "chunk_b"]
    assert frame.filter(pl.col("kind") != "OPT").select(columns).rows() == expected
