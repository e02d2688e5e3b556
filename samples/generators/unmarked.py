"""Write captures of made-up runs in which no pass is named, with the truth beside them: what Nsight Systems,
torch.profiler or rocprofv3 record of a Megatron-like program without markers.

    python -m samples.generators.unmarked            # writes samples/unmarked again

What marks nothing still leaves traces, and these are modelled: the calling thread launches forwards, weight gradients
and the optimizer, a thread of the autograd engine the backwards; a stage's forwards launch the same row of kernels; the
last stage's backward begins with a fill of the calling thread; sends and receives are one kernel for each call, waited
for; tokens are counted between passes. Beside them there may be what resembles a transfer or a pass: the all-to-all of
experts on both threads, kernels that vary with the experts' load, a forward recomputed inside a backward, reductions of
gradients from the engine's thread, graphs in place of kernels, logging after the optimizer.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from samples.generators.kineto_trace import MAIN, Trace
from samples.generators.nsys_export import VM, Export, thread_id
from samples.generators.pipeline import (
    MS,
    US,
    Block,
    Operation,
    Timing,
    one_f_one_b,
    simulate,
    zb_h1,
)
from samples.generators.rocpd_export import Export as RocpdExport

TIMING = Timing(
    lengths={"F": 2 * MS, "B": 3 * MS, "W": 1_800 * US, "OPT": 2 * MS},
    hop=300 * US,
    lead=400 * US,
    gap=2 * MS,
    reduce=MS,
    first=20 * MS,
    start_jitter=range(20, 90),
    length_jitter=range(-150, 150),
    optimizer_jitter=range(50, 250),
)
AUTOGRAD = 9
"""What the thread id of the autograd engine is above the main thread's."""
COMPUTE, PIPELINE, EXPERTS, DATA, COPIES = 7, 20, 21, 22, 14
"""Streams."""
LAUNCH = 5 * US
"""From one launch to the next."""
ARRIVAL = TIMING.hop - 50 * US
"""From the end of a block to the end of the transfer of its output."""
Key = tuple[int, int, str, int | None, int]
"""Rank, step, kind, micro-batch and chunk of a block."""

NORM, ATTENTION = "rmsnorm_fwd_tuned_kernel<__nv_bfloat16>", "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NCCL_DOMAIN, REDUCED = 3, 1 << 20
RCCL_KERNEL = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
RCCL_CALLS = {PIPELINE: "ncclSend", EXPERTS: "ncclRecv", DATA: "ncclReduceScatter"}
"""Stream → the call of RCCL before the launch of its kernels."""
_GENERIC = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 2ul>>(int)"
COUNT, FILL = _GENERIC.format("CUDAFunctor_add<int>"), _GENERIC.format("FillFunctor<float>")
COUNT_FILL, SUM = _GENERIC.format("FillFunctor<int>"), _GENERIC.format("CUDAFunctor_add<float>")
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float, 4>>(int)"
NORMS = "void at::native::multi_tensor_apply_kernel<at::native::LpNormFunctor<float, 2>>(int)"


@dataclass(frozen=True)
class Program:
    """What runs, and how. `schedule`: 1f1b, interleaved (two chunks), vee (two chunks, the second running back) or
    zb-h1. `host_transfers`: activations go
    through the host, with copies and waits in place of NCCL. `waits`: the calling thread waits after each transfer.
    `varying`: the experts launch as many kernels as their load asks for. `graphs`: each layer is a graph.
    `operators`: they are recorded, with their sequence numbers (emit_nvtx, cpu_op).
    `one_thread`: the calling thread launches the backwards too. `marked`: stages whose passes have ranges around their
    launches after all. `named`: who names some of the passes: the engine of DeepSpeed all forwards and the backwards of
    the last stage, or a program of its own all forwards or all backwards. `nccl`: Nsight Systems recorded the ranges of
    NCCL, whose reductions have their launch inside (that of a group of transfers is inside no range of them).
    `around`: the name of the range around the launches of each step, in which {step} is its number."""

    schedule: str = "1f1b"
    stages: int = 4
    microbatches: int = 8
    steps: int = 2
    layers: int = 2
    experts: bool = False
    varying: bool = False
    recompute: bool = False
    graphs: bool = False
    tokens: bool = True
    waits: bool = True
    host_transfers: bool = False
    one_thread: bool = False
    operators: bool = False
    marked: frozenset[int] = frozenset()
    named: Literal["", "deepspeed", "forwards", "backwards"] = ""
    nccl: bool = False
    around: str = ""

    def name(self, kind: str, *, last: bool) -> str | None:
        """That of a pass of a program that names some; `last`: of the last stage."""
        word = {"F": "forward", "B": "backward"}.get(kind, "")
        if self.named == "deepspeed" and (kind == "F" or (kind == "B" and last)):
            return f"DeepSpeedEngine.{word}"
        return f"{word}_step" if word and self.named == f"{word}s" else None

    @property
    def chunks(self) -> int:
        return 2 if self.schedule in ("interleaved", "vee") else 1

    @property
    def vee(self) -> bool:
        return self.schedule == "vee"

    def order(self, stage: int) -> list[Operation]:
        if self.schedule == "interleaved":
            return interleaved(stage, self.stages, self.microbatches, self.chunks)
        orders = {"1f1b": one_f_one_b, "zb-h1": zb_h1, "vee": vee}
        return orders[self.schedule](stage, self.stages, self.microbatches)

    def part(self, stage: int, chunk: int) -> int:
        """The place of a stage's chunk along the way of the data."""
        return chunk * self.stages + (self.stages - 1 - stage if self.vee and chunk else stage)

    def place(self, part: int) -> tuple[int, int]:
        """The stage and chunk of a part of the model."""
        chunk, stage = divmod(part, self.stages)
        return self.stages - 1 - stage if self.vee and chunk else stage, chunk

    def other(self, block: Block, *, sends: bool) -> Key | None:
        """The block that needs the output of `block`, or else makes its input; None where no other rank has it."""
        if block.kind not in "FB":
            return None
        part = self.part(block.rank, block.chunk or 0) + (1 if sends == (block.kind == "F") else -1)
        if not 0 <= part < self.chunks * self.stages:
            return None
        stage, chunk = self.place(part)
        return None if stage == block.rank else (stage, block.step, block.kind, block.microbatch, chunk)


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> list[Operation]:
    """Megatron-LM's interleaved 1F1B: micro-batches in groups of as many as there are stages, each group through one
    chunk after another; 2 (P - 1 - stage) + (chunks - 1) P forwards come first."""
    total = microbatches * chunks

    def at(kind: str, number: int) -> Operation:
        group, within = divmod(number, stages * chunks)
        chunk, microbatch = divmod(within, stages)
        return Operation(kind, group * stages + microbatch, chunk if kind == "F" else chunks - 1 - chunk)

    ahead = min(2 * (stages - 1 - stage) + (chunks - 1) * stages, total)
    order = [at("F", n) for n in range(ahead)]
    for n in range(total - ahead):
        order += [at("F", ahead + n), at("B", n)]
    return order + [at("B", n) for n in range(total - ahead, total)]


def vee(stage: int, stages: int, microbatches: int) -> list[Operation]:
    """A V without weight gradients of their own: the two halves of the way follow each other on the last stage, where
    each micro-batch turns; elsewhere all of one chunk precedes the other. Forwards come first."""
    turns = stage == stages - 1
    numbers = [(m, c) for m in range(microbatches) for c in (0, 1)] if turns else [
        (m, c) for c in (0, 1) for m in range(microbatches)
    ]  # fmt: skip
    forwards = [Operation("F", m, c) for m, c in numbers]
    return forwards + [Operation("B", m, 1 - c) for m, c in numbers]


class Recorder(Protocol):
    """A capture of one process; times are nanoseconds of its session."""

    def call(self, start: int, name: str, *, engine: bool = False) -> int: ...
    def kernel(self, start: int, end: int, call: int, name: str, stream: int) -> None: ...
    def graph(self, start: int, end: int, call: int, number: int) -> None: ...
    def copy(self, start: int, end: int, call: int, kind: int) -> None: ...
    def range(self, start: int, end: int, name: str) -> None: ...
    def operator(self, start: int, end: int, number: int, *, node: bool, engine: bool = True) -> None: ...


class Nsight:
    """A process in an export of Nsight Systems."""

    def __init__(self, export: Export, rank: int, *, threads: bool, nccl: bool = False) -> None:
        """`threads`: whether the names of threads are recorded; `nccl`: whether the ranges of NCCL are."""
        self.export, self.process, self.nccl = export, 4_000 + 11 * rank, nccl
        self.calls = dict[int, tuple[int, int | None]]()
        if threads:
            name = export.string("pt_autograd_0")
            export.add("ThreadNames", name, None, thread_id(self.process, self.process + AUTOGRAD))
        export.string("cudaLaunchKernel_v7000")

    def call(self, start: int, name: str, *, engine: bool = False) -> int:
        thread = self.process + AUTOGRAD if engine else None
        number = self.export.call(self.process, start, thread=thread, name=name)
        self.calls[number] = start, thread
        return number

    def kernel(self, start: int, end: int, call: int, name: str, stream: int) -> None:
        if self.nccl and name == REDUCE:
            at, thread = self.calls[call]
            opened = self.export.payload(NCCL_DOMAIN, 1_001, communicator=9, bytes=REDUCED)
            self.export.range(self.process, at - US // 2, at + 3 * US, "ncclReduceScatter", thread=thread,
                              registered=True, domain=NCCL_DOMAIN, payload=opened)  # fmt: skip
        full, short = self.export.string(name), self.export.string(short_name(name))
        pid = VM | self.process << 24
        self.export.add("CUPTI_ACTIVITY_KIND_KERNEL", start, end, 0, 1, stream, call, pid, full, short, None)

    def graph(self, start: int, end: int, call: int, number: int) -> None:
        row = (start, end, 0, 1, COMPUTE, call, VM | self.process << 24, number, number)
        self.export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", *row)

    def copy(self, start: int, end: int, call: int, kind: int) -> None:
        self.export.copy(self.process, start, end, call, kind=kind)

    def range(self, start: int, end: int, name: str) -> None:
        self.export.range(self.process, start, end, name)

    def operator(self, start: int, end: int, number: int, *, node: bool, engine: bool = True) -> None:
        """emit_nvtx writes the number into the range of the node's function, inside that of its evaluation."""
        if not node:
            self.export.range(self.process, start, end, f"aten::linear, seq = {number}, op_id = {start % 9973}")
            return
        thread = self.process + AUTOGRAD if engine else None
        around = "autograd::engine::evaluate_function: MmBackward0, op_id = 3"
        self.export.range(self.process, start, end, around, thread=thread)
        self.export.range(self.process, start + 1, end - 1, f"MmBackward0, seq = {number}, op_id = 4", thread=thread)


class Kineto:
    """A trace of torch.profiler."""

    layout = "kineto"

    def __init__(self, trace: Trace, *, threads: bool) -> None:
        self.trace = trace
        if threads:
            trace.name_thread(MAIN + AUTOGRAD, f"thread {MAIN + AUTOGRAD} (pt_autograd_0)")

    def call(self, start: int, name: str, *, engine: bool = False) -> int:
        return self.trace.call(start, thread=MAIN + AUTOGRAD if engine else MAIN, name=name.split("_v")[0])

    def kernel(self, start: int, end: int, call: int, name: str, stream: int) -> None:
        self.trace.kernel(start, end, call, name=name, stream=stream)

    def graph(self, start: int, end: int, call: int, number: int) -> None:
        """Kineto records the kernels of a graph, all with the id of its launch."""
        middle = (start + end) // 2
        self.trace.kernel(start, middle, call, name=f"triton_fused_{number}_a", stream=COMPUTE)
        self.trace.kernel(middle, end, call, name=f"triton_fused_{number}_b", stream=COMPUTE)

    def copy(self, start: int, end: int, call: int, kind: int) -> None:
        self.trace.copy(start, end, call, kind="HtoD" if kind == 1 else "DtoH")

    def range(self, start: int, end: int, name: str) -> None:
        self.trace.range(start, end, name)

    def operator(self, start: int, end: int, number: int, *, node: bool, engine: bool = True) -> None:
        name = "autograd::engine::evaluate_function: MmBackward0" if node else "aten::linear"
        thread = MAIN + AUTOGRAD if node and engine else MAIN
        self.trace.add("cpu_op", name, start, end, thread, **{"Sequence number": number, "Fwd thread id": int(node)})


class Kineto2021(Kineto):
    """One of early 2021, whose operators have no numbers and whose threads have no names."""

    layout = "kineto_2021"

    def operator(self, start: int, end: int, number: int, *, node: bool, engine: bool = True) -> None:
        name, thread = ("MmBackward", MAIN + AUTOGRAD) if node and engine else ("aten::linear", MAIN)
        self.trace.add("cpu_op", name, start, end, thread)


class Rocm(Kineto):
    """A trace of torch.profiler on AMD's GPUs: HIP's calls, Tensile's products, and RCCL's kernels, most of which have
    one name for all that they do."""

    def call(self, start: int, name: str, *, engine: bool = False) -> int:
        return super().call(start, name.replace("cuda", "hip"), engine=engine)

    def kernel(self, start: int, end: int, call: int, name: str, stream: int) -> None:
        operations = {PIPELINE: "coalesced", EXPERTS: "all_to_allv", DATA: "_reduce_scatter_base"}
        if stream not in operations:
            super().kernel(start, end, call, tensile(name), stream)
            return
        self.trace.kernel(start, end, call, name=RCCL_KERNEL, stream=stream, **{"Collective name": operations[stream]})


class Rocpd:
    """A process in a database of rocprofv3, which records no names of threads; RCCL's calls are recorded."""

    def __init__(self, export: RocpdExport) -> None:
        self.export, self.calls = export, dict[int, tuple[int, int]]()

    def call(self, start: int, name: str, *, engine: bool = False) -> int:
        thread = self.export.pid + (AUTOGRAD if engine else 0)
        stack = self.export.call(0, start, thread=thread, name=name.split("_v")[0].replace("cuda", "hip"))
        self.calls[stack] = start, thread
        return stack

    def kernel(self, start: int, end: int, call: int, name: str, stream: int) -> None:
        if (function := RCCL_CALLS.get(stream)) is None:
            self.export.kernel(0, start, end, call, name=tensile(name), stream=stream)
            return
        at, thread = self.calls[call]
        self.export.range(0, at - US // 2, at - US // 4, function, thread=thread, registered=True)
        self.export.kernel(0, start, end, call, name=RCCL_KERNEL, stream=stream)

    def graph(self, start: int, end: int, call: int, number: int) -> None:
        """The kernels of a graph have the stack of its launch."""
        middle = (start + end) // 2
        self.export.kernel(0, start, middle, call, name=f"triton_fused_{number}_a", stream=COMPUTE)
        self.export.kernel(0, middle, end, call, name=f"triton_fused_{number}_b", stream=COMPUTE)

    def copy(self, start: int, end: int, call: int, kind: int) -> None:
        self.export.copy(0, start, end, call, kind="HOST_TO_DEVICE" if kind == 1 else "DEVICE_TO_HOST")

    def range(self, start: int, end: int, name: str) -> None:
        self.export.range(0, start, end, name)

    def operator(self, start: int, end: int, number: int, *, node: bool, engine: bool = True) -> None:
        """emit_nvtx writes ROCTx ranges here; see Nsight.operator."""
        if not node:
            self.export.range(0, start, end, f"aten::linear, seq = {number}, op_id = {start % 9973}")
            return
        thread = self.export.pid + (AUTOGRAD if engine else 0)
        around = "autograd::engine::evaluate_function: MmBackward0, op_id = 3"
        self.export.range(0, start, end, around, thread=thread)
        self.export.range(0, start + 1, end - 1, f"MmBackward0, seq = {number}, op_id = 4", thread=thread)


def tensile(name: str) -> str:
    """What a kernel is called on AMD's GPUs: products are Tensile's."""
    return f"Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{name.split('_')[2]}" if "nvjet" in name else name


def short_name(name: str) -> str:
    """The name of a kernel without its type, arguments and spaces: `flash_fwd_kernel`."""
    return name.split("<")[0].split("(")[0].split("::")[-1].split(" ")[-1]


class Arrivals(NamedTuple):
    """When the input of each block has arrived `at` its rank, and which block of the rank came `before` it."""

    at: dict[Key, int]
    before: dict[Key, Key | None]


@dataclass
class Rank:
    """Puts what one rank launches into its capture."""

    program: Program
    stage: int
    recorder: Recorder
    chance: random.Random
    arrived: Arrivals
    numbers: int = field(default=100, init=False)
    """The next sequence number."""
    forwards: dict[tuple[int, int | None, int], range] = field(default_factory=dict, init=False)
    """Step, micro-batch and chunk of a forward → the sequence numbers of its operators."""

    def product(self, part: int) -> str:
        tile = 128 + 64 * (self.chance.randrange(4) if self.program.varying else part % 3)
        return f"nvjet_hsh_{tile}x128_64x4_2x1_v_bz_{'NTN'[part % 3]}"

    def layer(self) -> Iterator[str]:
        """The kernels of a layer's forward; `*` is the all-to-all of experts."""
        yield from (NORM, self.product(0), "fused_rope_forward", ATTENTION, self.product(1), "add_bias_dropout", NORM)
        if not self.program.experts:
            yield from (self.product(2), "swiglu_fwd", self.product(0))
        else:
            yield from ("router_topk", "*")
            for part in range(self.chance.randint(1, 4) if self.program.varying else 2):
                yield from (self.product(part), "swiglu_fwd", self.product(part + 1))
            yield from ("*", "unpermute")
        yield "add_bias_dropout"

    def forward(self, chunk: int) -> Iterator[str]:
        if self.program.graphs:
            yield from (f"graph {10 * chunk + layer}" for layer in range(self.program.layers))
        else:
            if self.stage == 0 and chunk == 0:
                yield "embedding_fwd"
            for _ in range(self.program.layers):
                yield from self.layer()
        if self.last(chunk):
            yield from (self.product(0), "cross_entropy_fwd", "loss_mask_mul")

    def backward(self, chunk: int) -> Iterator[str]:
        """The engine's kernels, but the first on the last stage, which is the calling thread's."""
        if self.last(chunk):
            yield from (FILL, "cross_entropy_bwd", self.product(0))
        for layer in range(self.program.layers):
            if self.program.graphs:
                yield f"graph {100 + 10 * chunk + layer}"
                continue
            if self.program.recompute:
                yield from self.layer()
            for name in ("swiglu_bwd", "flash_bwd_dq_dk_dv_loop_kernel<128>", "rmsnorm_bwd_kernel"):
                yield from (self.product(0), name)
                if self.program.schedule != "zb-h1":
                    yield self.product(1)
            if self.program.experts:
                yield from ("*", "permute_bwd", "*")

    def kernels(self, block: Block) -> list[str]:
        if block.kind == "F":
            return list(self.forward(block.chunk or 0))
        if block.kind == "B":
            return list(self.backward(block.chunk or 0))
        if block.kind == "W":
            return [self.product(part) for _ in range(self.program.layers) for part in range(4)]
        return [NORMS, ADAM, ADAM, ADAM]

    def last(self, chunk: int) -> bool:
        return self.program.part(self.stage, chunk) == self.program.chunks * self.program.stages - 1

    def block(self, block: Block) -> int:
        """Launches the kernels of a block, which share its time; returns when the last one was launched."""
        names = self.kernels(block)
        computing = [n for n in names if n != "*"]
        cuts = sorted(self.chance.sample(range(block.start_ns + US, block.end_ns - US), len(computing) - 1))
        times = iter(list(pairwise([block.start_ns, *cuts, block.end_ns])))
        launch = block.start_ns - 20 * US
        for number, name in enumerate(names):
            launch += LAUNCH
            node = block.kind == "B" and not (number == 0 and name == FILL)
            engine = node and not self.program.one_thread
            self.launch(name, launch, block.start_ns if name == "*" else next(times), engine=engine)
            if self.program.operators and block.kind in "FB" and (node or block.kind == "F"):
                number = self.numbered(block, len(names), number)
                self.recorder.operator(launch - US, launch + 3 * US, number, node=node, engine=engine)
        if self.stage in self.program.marked:
            name = "Optimizer" if block.kind == "OPT" else f"{block.kind}{block.microbatch}.{block.chunk or 0}.0"
            self.recorder.range(block.start_ns - 19 * US, launch + LAUNCH // 2, name)
        if part := self.program.name(block.kind, last=self.last(block.chunk or 0)):
            self.recorder.range(block.start_ns - 19 * US, launch + LAUNCH // 2, part)
        return launch

    def numbered(self, block: Block, kernels: int, place: int) -> int:
        """The sequence number of the operator or node that launches a kernel. The backward runs through those of its
        forward from the last to the first."""
        key = (block.step, block.microbatch, block.chunk or 0)
        if block.kind == "F" and place == 0:
            self.forwards[key] = range(self.numbers, self.numbers + kernels)
            self.numbers += kernels
        own = self.forwards[key]
        return own[place] if block.kind == "F" else own[(kernels - 1 - place) * (len(own) - 1) // max(1, kernels - 1)]

    def launch(self, name: str, at: int, when: int | tuple[int, int], *, engine: bool) -> None:
        graph = name.startswith("graph ")
        call = self.recorder.call(at, "cudaGraphLaunch_v10000" if graph else "cudaLaunchKernel_v7000", engine=engine)
        if isinstance(when, int):
            self.recorder.kernel(when, when + 50 * US, call, SEND_RECV, EXPERTS)
        elif graph:
            self.recorder.graph(*when, call, int(name.removeprefix("graph ")))
        else:
            self.recorder.kernel(*when, call, name, COMPUTE)

    def run(self, blocks: Sequence[Block]) -> None:
        """The blocks of the rank in order, and what lies between them."""
        at = began = blocks[0].start_ns - 300 * US
        at = self.small(at, COUNT_FILL)
        at = self.transfer(at, None, blocks[0])
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            at = self.block(block)
            if block.kind == "F" and self.program.tokens:
                at = self.small(at, COUNT, block.end_ns)
            if block.kind == "B" and (following is None or following.kind == "OPT"):
                self.reduce(at, block.end_ns)
            if block.kind == "OPT":
                at = self.small(at, "log_loss_sum", block.end_ns)
                at = self.wait(self.small(at, COUNT_FILL, block.end_ns))
                if self.program.around:
                    self.recorder.range(began, at, self.program.around.format(step=block.step))
                began = at + 1
            at = self.transfer(at, block, following)

    def small(self, at: int, name: str, end: int | None = None) -> int:
        """A short kernel of the calling thread, on a stream of its own."""
        begin = (at if end is None else end) + 2 * US
        self.recorder.kernel(
            begin, begin + US, self.recorder.call(at + LAUNCH, "cudaLaunchKernel_v7000"), name, COMPUTE
        )
        return at + LAUNCH

    def reduce(self, at: int, end: int) -> None:
        """The engine reduces gradients as the last backward yields them."""
        call = self.recorder.call(at + US, "cudaLaunchKernelExC_v11060", engine=True)
        self.recorder.kernel(end, end + 200 * US, call, REDUCE, DATA)

    def wait(self, at: int) -> int:
        self.recorder.call(at + LAUNCH, "cudaDeviceSynchronize_v3020")
        return at + LAUNCH

    def transfer(self, at: int, before: Block | None, after: Block | None) -> int:
        """Sends what `before` made and receives what `after` needs, if there is anything to do: by one call where two
        neighbours exchange, or the schedule is interleaved, as in Megatron-LM; else by one each."""
        target = self.program.other(before, sends=True) if before else None
        source = self.program.other(after, sends=False) if after else None
        if target is None and source is None:
            return at
        received = self.arrived.at[key_of(after)] if source and after else 0
        begin = before.end_ns if before else received - 30 * US
        latest = after.start_ns - 30 * US if after else begin + MS
        sent = min(latest, self.arrived.at[target]) if target else 0
        if self.program.host_transfers:
            at = self.wait(at)
            for kind, wanted in ((2, target), (1, source)):
                if wanted:
                    at += LAUNCH
                    self.recorder.copy(begin, begin + 20 * US, self.recorder.call(at, "cudaMemcpyAsync_v3020"), kind)
            return self.wait(at)
        times = [(begin, max(sent, received, begin + 20 * US))]
        if target and source and self.arrived.before[target] != source and self.program.chunks == 1:
            middle = max(begin + 20 * US, min(sent, received - 25 * US))
            times = [(begin, middle), (middle + 5 * US, max(middle + 25 * US, received))]
        for started, ended in times:
            call = self.recorder.call(at + LAUNCH, "cudaLaunchKernelExC_v11060")
            self.recorder.kernel(started, ended, call, SEND_RECV, PIPELINE)
            at = self.wait(at + LAUNCH) if self.program.waits else at + LAUNCH
        return at


def arrivals(program: Program, blocks: Sequence[Block]) -> Arrivals:
    """The input of a block arrives `ARRIVAL` after the one rank has made it and the other is free to take it. So ranks
    that exchange with each other are done at the same time."""
    made = {key_of(block): block.end_ns for block in blocks}
    last: dict[int, Block] = {}
    found = Arrivals({}, {})
    for block in sorted(blocks, key=lambda block: block.start_ns):
        before, key = last.get(block.rank), key_of(block)
        found.before[key] = key_of(before) if before else None
        if (source := program.other(block, sends=False)) is not None:
            found.at[key] = max(made[source], before.end_ns if before else 0) + ARRIVAL
        last[block.rank] = block
    return found


def key_of(block: Block) -> Key:
    return block.rank, block.step, block.kind, block.microbatch, block.chunk or 0


def blocks_of(program: Program, chance: random.Random) -> list[Block]:
    """The truth, in session time."""
    orders = [program.order(stage) for stage in range(program.stages)]
    return simulate(orders, TIMING, range(program.steps), chance, chunks=program.chunks, vee=program.vee).blocks


def write(
    folder: Path,
    program: Program,
    *,
    seed: int = 1,
    threads: bool = True,
    kineto: bool | Literal["2021"] = False,
    rocm: bool = False,
    rocpd: bool = False,
    schema: int = 3,
) -> list[Block]:
    """A capture of the program in `folder`: one export, or with `kineto` (2021: of then) or `rocm` a trace for each
    rank, or with `rocpd` a database of this `schema`. `threads`: the names of threads are in it. Returns
    the truth, in the session's time."""
    chance = random.Random(seed)
    blocks = blocks_of(program, chance)
    folder.mkdir(parents=True, exist_ok=True)
    export = Export()
    arrived = arrivals(program, blocks)
    for stage in range(program.stages):
        own = [b for b in blocks if b.rank == stage]
        if rocpd:
            environment = {"RANK": str(stage), "WORLD_SIZE": str(program.stages)}
            records = RocpdExport(pid=4_000 + 11 * stage, gpu=stage, environment=environment, schema=schema)
            Rank(program, stage, Rocpd(records), chance, arrived).run(own)
            records.write(folder / f"{records.pid}_results.db")
            continue
        trace = Trace(rank=stage, world=program.stages)
        traced = Rocm if rocm else Kineto2021 if kineto == "2021" else Kineto
        recorder = (
            traced(trace, threads=threads)
            if kineto or rocm
            else Nsight(export, stage, threads=threads, nccl=program.nccl)
        )
        Rank(program, stage, recorder, chance, arrived).run(own)
        if kineto or rocm:
            trace.write(folder / f"node0_{700 + stage}.1760000000000000000.pt.trace.json.gz", traced.layout)
    if not (kineto or rocm or rocpd):
        export.write(folder / "node0.sqlite")
    return blocks


def write_sample(folder: Path) -> None:
    """A 1F1B run, and truth.csv."""
    blocks = write(folder, Program(microbatches=6, layers=1))
    with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "step", "kind", "microbatch", "true_start_ns", "true_end_ns"])
        for b in blocks:
            microbatch = "" if b.kind == "OPT" else b.microbatch
            times = b.start_ns + Export.epoch_ns, b.end_ns + Export.epoch_ns
            table.writerow([b.rank, b.step, b.kind, microbatch, *times])


if __name__ == "__main__":
    write_sample(Path(__file__).parent.parent / "unmarked")
