"""Write Ascend and MindSpore profiles of a made-up run, with the truth beside them.

    python -m samples.generators.ascend          # writes samples/ascend and samples/mindspore again

A `Job` says what was trained and how it was recorded. The samples: two hosts, two stages on each. Every block is marked
as MindSpeed's wrappers do it, without a micro-batch number; activations and gradients go through hcom_send and
hcom_receive, whose ends meet on both sides. Durations are made up; the order obeys the pipeline. A host's clock may be
off.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from samples.generators.ascend_export import (
    Kernel,
    Layout,
    Mark,
    Operator,
    Recording,
    Stamps,
    lay_beside,
    lay_loose,
    write_database,
    write_text,
)
from samples.generators.block_kernels import Cut
from samples.generators.pipeline import (
    MS,
    US,
    Block,
    Order,
    Simulation,
    Timing,
    Transfer,
    WrongTimes,
    one_f_one_b,
    recorded,
    simulate,
)

EPOCH_NS = 1_764_246_877_000_000_000
STARTED = datetime(2025, 11, 27, 12, 0, 0)
"""When the profiler says that a recording began."""
LAUNCH = 5 * US
TIMING = Timing(
    lengths={"F": 4 * MS, "B": 8 * MS, "W": 3 * MS, "FB": 10 * MS, "L": 600 * US, "OPT": 3 * MS - LAUNCH},
    hop=150 * US,
    lead=LAUNCH,
    gap=MS,
    reduce=2 * MS,
    length_jitter=range(-200, 200),
    blocking_receives=True,
)
FORWARD = ("RmsNorm", "MatMulV3", "FlashAttentionScore", "SwiGlu", "Add")
BACKWARD = ("SwiGluGrad", "MatMulV3", "FlashAttentionScoreGrad", "RmsNormGrad", "Cast")
KERNELS = {
    "F": FORWARD,
    "B": BACKWARD,
    "W": ("MatMulV3", "Add"),
    "L": ("MatMulV3", "Cast"),
    "FB": FORWARD + BACKWARD,
    "OPT": ("ApplyAdamWV2",) * 3,
}
WORLD = "group_name_0"
BYTES = 8 << 20

Marker = Callable[[Block], str | None]
"""The text that marks a block, None for one without a mark."""


def plain_marker(block: Block) -> str | None:
    """Megatron's wrappers: a name and nothing else."""
    name = {"F": "forward_step", "B": "backward_step", "L": "backward_step"}.get(block.kind)
    return name and str({"name": name})


def no_marker(block: Block) -> None:
    return None


def model_graph_marker(microbatches: int) -> Marker:
    """MindSpeed's DualPipeV: forwards of chunk c are numbered m + c · M; backwards have no number."""

    def marker(block: Block) -> str | None:
        if block.kind in ("F", "FB"):
            name = "forward_step_with_model_graph" if block.kind == "F" else "forward_backward_overlaping"
            number = (block.microbatch or 0) + (block.chunk or 0) * microbatches
            return str({"name": name, "current_microbatch": number})
        name = {"B": "backward_step_with_model_graph", "L": "backward_step_with_model_graph"}.get(block.kind, "")
        return str({"name": "WeightGradStore.pop"}) if block.kind == "W" else name and str({"name": name})

    return marker


def without_model_graph_marker(microbatches: int) -> Marker:
    """The same without fused blocks (moe_fb_overlap off)."""

    def marker(block: Block) -> str | None:
        number = (block.microbatch or 0) + (block.chunk or 0) * microbatches
        if block.kind == "F":
            return str({"name": "forward_step_no_model_graph", "current_microbatch": number})
        return plain_marker(block) or (str({"name": "WeightGradStore.pop"}) if block.kind == "W" else None)

    return marker


@dataclass(frozen=True)
class Job:
    """What was trained, and how it was recorded.

    `orders`: the operations of each stage, 1F1B where None. Ranks are numbered tp fastest, then cp, then dp, then pp;
    with `pipelines_first` tp, cp, pp, dp. `clip`: so many blocks late does the capture of a rank begin. `level`: none
    (marks only), 0 (no kernel types, no peers) or 1. `batched`: transfers are called batchSendRecv. `overlapping`: the
    tasks of a transfer are a wait and then a copy, shorter than its operator, and sends and receives, which are under
    way at a time, have streams of their own. `nested`: a WeightGradStore.pop inside each B and FB. `kernels`: the least
    number of kernels in a forward or backward, unless `cut` says which kernels a block has.
    `begun_us`: when the job began, which the identifier of its group of all ranks says; without it groups are counted,
    as newer versions do. `calls`, `stamps`, `packed`: see ascend_export.Recording; `layout`: see there. `host_only`:
    marks without a stream, on no device. `wrong`: wrong times on the device (see pipeline.WrongTimes), of the marks of
    blocks or, where these have none, of kernels. `slow`: how many times as long the blocks of a stage take. `together`:
    all ranks are devices of one process, which records no metadata.
    """

    stages: int = 4
    microbatches: int = 6
    steps: int = 2
    orders: Sequence[Order] | None = None
    chunks: int = 1
    vee: bool = False
    tensor: int = 1
    context: int = 1
    data: int = 1
    pipelines_first: bool = False
    hosts: int = 2
    skew_ns: int = 0
    marker: Marker = plain_marker
    framework: str = "pytorch"
    text: bool = False
    level: int | None = 1
    batched: bool = False
    overlapping: bool = False
    clip: Mapping[int, int] = field(default_factory=dict)
    nested: bool = False
    kernels: int = 5
    cut: Cut | None = None
    calls: bool = False
    stamps: Stamps = "text"
    host_only: bool = False
    together: bool = False
    wrong: WrongTimes = field(default_factory=dict)
    packed: bool = False
    begun_us: int | None = None
    layout: Layout = "capture"
    pipeline_info: Mapping[str, object] | None = None
    slow: Mapping[int, float] = field(default_factory=dict)
    seed: int = 1

    @property
    def columns(self) -> int:
        """How many pipelines there are."""
        return self.tensor * self.context * self.data

    @property
    def ranks(self) -> int:
        return self.stages * self.columns

    def place(self, rank: int) -> tuple[int, int]:
        """Stage and column of a rank."""
        if not self.pipelines_first:
            return divmod(rank, self.columns)
        inner = self.tensor * self.context
        rest, low = divmod(rank, inner)
        data, stage = divmod(rest, self.stages)
        return stage, data * inner + low

    def rank(self, stage: int, column: int) -> int:
        if not self.pipelines_first:
            return stage * self.columns + column
        data, low = divmod(column, self.tensor * self.context)
        return (data * self.stages + stage) * self.tensor * self.context + low


@dataclass
class Truth:
    """What the files say, in the clock of each rank's host: blocks by rank and start (OPT too), and the messages of
    which both sides were recorded, as (src, dst, direction, microbatch, chunk, send start, end, receive start, end)."""

    job: Job
    blocks: list[Block] = field(default_factory=list)
    messages: list[tuple[int | str, ...]] = field(default_factory=list)

    def stage(self, rank: int) -> int:
        return self.job.place(rank)[0]


def record(
    folder: Path, job: Job, *, at_ns: int = 0, ranks: Sequence[int] | None = None, first_step: int = 0, pid: int = 4000
) -> Truth:
    """Writes one capture per rank below `folder` and returns what they hold. The recording of these `ranks` (None: of
    all) begins at `at_ns` with the step `first_step`; `pid` is the process of rank 0."""
    chance = random.Random(job.seed)
    orders = job.orders or [one_f_one_b(stage, job.stages, job.microbatches) for stage in range(job.stages)]
    steps = range(first_step, first_step + job.steps)
    run = simulate(
        orders, replace(TIMING, slow={**TIMING.slow, **job.slow}), steps, chance, chunks=job.chunks, vee=job.vee
    )
    if job.vee:  # there two ranks send to each other at the same time
        run.transfers = _in_issue_order(run.transfers)
    truth, sides = Truth(job), Sides()
    devices: list[Recording] = []
    per_host = -(-job.ranks // job.hosts)
    for rank in range(job.ranks) if ranks is None else ranks:
        host, device = divmod(rank, per_host)
        rec = Recording(rank, device, f"node{host}", metadata(job, rank), job.framework, job.level, job.calls)
        rec.stamps, rec.packed = job.stamps, job.packed
        ahead = EPOCH_NS + at_ns + host * job.skew_ns
        truth.blocks += fill(rec, job, run, ahead)
        transfer(rec, job, run, ahead, chance, sides)
        _reduce(rec, job, run, ahead, chance)
        if job.together:
            devices.append(replace(rec, metadata={}))
        else:
            save(rec, job, folder, at_ns // MS, pid + rank)
    if devices:
        write_database(devices[0], folder / f"node0_{pid}_20251127120000000_ascend_pt", *devices[1:])
    truth.messages = sides.complete()
    return truth


def save(rec: Recording, job: Job, folder: Path, at_ms: int = 0, pid: int | None = None) -> None:
    """Writes a capture below `folder`, where the profiler puts it and named as it names it: by process and time."""
    framework = "ms" if rec.framework == "mindspore" else "pt"
    began = STARTED + timedelta(milliseconds=at_ms + rec.rank)
    stamp = f"{began:%Y%m%d%H%M%S}{began.microsecond // 1000:03d}"
    name = f"{rec.host}_{4000 + rec.rank if pid is None else pid}_{stamp}_ascend_{framework}"
    if of_old := job.layout in ("beside", "timeline beside", "rank folders"):
        name = f"rank-{rec.rank}_20240820123456{rec.rank:03d}_ascend_ms"
        folder = folder / (f"rank_{rec.rank}" if job.layout == "rank folders" else rec.host) / "profiler"
    (write_text if job.text else write_database)(rec, folder / name)
    if of_old:
        lay_beside(rec, folder / name, timeline=job.layout != "beside")
    elif job.layout != "capture":
        lay_loose(rec.rank, folder / name, folder, merged=job.layout == "merged")


def write(
    folder: Path, stages: int = 4, microbatches: int = 6, steps: int = 2, hosts: int = 2, skew_ns: int = 0,
    text: bool = False, seed: int = 1, replicas: int = 1, kernels: int = 5,
    calls: bool = False,
) -> list[Block]:  # fmt: skip
    """A 1F1B job of `replicas` pipelines of neighbouring ranks, and `truth.csv` on the true clock; as text the captures
    are MindSpore's. Returns the blocks of one pipeline, in times since the start of the run."""
    job = Job(
        stages, microbatches, steps, data=replicas, pipelines_first=True, hosts=hosts, skew_ns=skew_ns, text=text,
        framework="mindspore" if text else "pytorch", kernels=kernels, seed=seed, calls=calls,
        overlapping=not text,
    )  # fmt: skip
    truth = record(folder, job)
    per_host = -(-job.ranks // hosts)
    blocks = [
        replace(b, start_ns=b.start_ns - off, end_ns=b.end_ns - off)
        for b in truth.blocks
        if b.rank < stages
        for off in (EPOCH_NS + b.rank // per_host * skew_ns,)
    ]
    with (folder / "truth.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["rank", "stage", "step", "kind", "microbatch", "start_ns", "end_ns"])
        for b in blocks:
            table.writerow([b.rank, b.rank, b.step, b.kind, b.microbatch, EPOCH_NS + b.start_ns, EPOCH_NS + b.end_ns])
    return blocks


def _in_issue_order(transfers: list[Transfer]) -> list[Transfer]:
    """Two ranks issue the transfers between them in one order, or they would wait for each other for ever: a receive
    is posted earlier, or an operation issued later, where that is needed."""
    found = list(transfers)
    pairs: dict[tuple[int, frozenset[int]], list[int]] = {}
    for place, t in sorted(enumerate(transfers), key=lambda item: item[1].done_ns):
        pairs.setdefault((t.step, frozenset((t.sender, t.receiver))), []).append(place)
    for (_, ranks), pair in pairs.items():
        for rank in ranks:
            for place, after in zip(pair[-2::-1], pair[:0:-1], strict=True):
                if found[place].receiver == rank:
                    latest = found[after].issued_ns(rank) - US
                    found[place] = replace(found[place], posted_ns=min(found[place].posted_ns, latest))
            for before, place in pairwise(pair):
                earliest = found[before].issued_ns(rank) + US
                side = "sent_ns" if found[place].sender == rank else "posted_ns"
                found[place] = replace(found[place], **{side: max(found[place].issued_ns(rank), earliest)})
        for place in pair:
            t = found[place]
            found[place] = replace(t, done_ns=max(t.sent_ns, t.posted_ns) + TIMING.hop)
    return found


def metadata(job: Job, rank: int) -> dict[str, object]:
    """What the training script adds; MindSpore's profiler does not know the groups."""
    stage, column = job.place(rank)
    sizes = {
        "tensor_model_parallel_size": job.tensor,
        "pipeline_model_parallel_size": job.stages,
        "data_parallel_size": job.data,
    }
    if job.context > 1:
        sizes["context_parallel_size"] = job.context
    found: dict[str, object] = {"distributed_args": sizes}
    if job.framework == "pytorch":
        world = WORLD if job.begun_us is None else f"10.0.0.7%enp3s0_{60000}_0_{job.begun_us}"
        pipeline = [job.rank(s, column) for s in range(job.stages)]
        found["parallel_group_info"] = {
            world: {"group_name": "default_group", "group_rank": rank, "global_ranks": list(range(job.ranks))},
            group_of(column): {"group_name": "pp", "group_rank": stage, "global_ranks": pipeline},
        }
    if job.pipeline_info is not None:
        found["pp_info"] = dict(job.pipeline_info)
    return found


def group_of(column: int) -> str:
    """The identifier of a pipeline's group."""
    return f"group_name_{19 + column}"


def _begin(rec: Recording, job: Job, run: Simulation) -> int:
    """When the capture of the rank begins, in true time."""
    mine = [b for b in run.blocks if b.rank == job.place(rec.rank)[0]]
    skipped = job.clip.get(rec.rank, 0)
    return mine[skipped].start_ns - LAUNCH + US if skipped else min(0, mine[0].start_ns)


def fill(rec: Recording, job: Job, run: Simulation, ahead: int) -> list[Block]:
    """Marks, kernels and steps; the host issues a step's work long before the device is through with it.

    Returns the blocks in the clock of the host, which is `ahead` of the time since the start of the run.
    """
    begin = _begin(rec, job, run)
    whole = [b for b in run.blocks if b.rank == job.place(rec.rank)[0]]
    first = {b.step: min(o.start_ns for o in whole if o.step == b.step) for b in whole}
    blocks = [b for b in whole if b.start_ns >= begin]
    issued = dict.fromkeys(first, 0)
    for b in blocks:
        text = job.marker(b)
        if text:
            host = ahead + first[b.step] - MS + issued[b.step] * 20 * US
            issued[b.step] += 1
            times = recorded(b, 0, ahead + b.start_ns, ahead + b.end_ns, job.wrong)
            rec.marks.append(Mark(text, *times, host, host + 15 * US, on_device=not job.host_only))
            if job.nested and b.kind in ("B", "FB"):
                quarter = (b.end_ns - b.start_ns) // 4
                inner = ahead + b.start_ns + quarter
                text = str({"name": "WeightGradStore.pop"})
                rec.marks.append(Mark(text, inner, inner + quarter, host + 5 * US, host + 9 * US))
        of_rank = replace(b, rank=rec.rank)
        for place, (name, *times) in enumerate(job.cut(of_rank) if job.cut else _in_equal_parts(b, job.kernels)):
            times = recorded(b, place, *(ahead + t for t in times), {} if text else job.wrong)
            rec.kernels.append((b.step, Kernel(name, *times)))
    for step, start in first.items():
        end = max(b.end_ns for b in whole if b.step == step)
        rec.steps.append((step, ahead + start - 2 * MS, ahead + end))
    mine = [replace(b, rank=rec.rank, start_ns=ahead + b.start_ns, end_ns=ahead + b.end_ns) for b in blocks]
    return sorted(mine, key=lambda b: b.start_ns)


def _in_equal_parts(block: Block, least: int) -> list[tuple[str, int, int]]:
    """A block as kernels of one length, at least so many."""
    types = KERNELS[block.kind] * (-(-least // len(KERNELS[block.kind])) if block.kind != "OPT" else 1)
    length = (block.end_ns - block.start_ns - 4 * US) // len(types)
    starts = [block.start_ns + 2 * US + place * length for place in range(len(types))]
    return [(name, at, at + length - min(US, length // 2)) for name, at in zip(types, starts, strict=True)]


class Sides:
    """The sides of the transfers that were recorded."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, Transfer], dict[str, tuple[int, int, int]]] = {}

    def add(self, column: int, transfer: Transfer, what: str, rank: int, start: int, end: int) -> None:
        self.found.setdefault((column, transfer), {})[what] = (rank, start, end)

    def complete(self) -> list[tuple[int | str, ...]]:
        return [
            (
                sides["send"][0],
                sides["receive"][0],
                t.kind,
                t.microbatch,
                t.chunk,
                *sides["send"][1:],
                *sides["receive"][1:],
            )
            for (_, t), sides in self.found.items()
            if len(sides) == 2
        ]


def transfer(rec: Recording, job: Job, run: Simulation, ahead: int, chance: random.Random, sides: Sides) -> None:
    """Operators of the pipeline's group in the order of their posting."""
    stage, column = job.place(rec.rank)
    begin = _begin(rec, job, run)
    own = [t for t in run.transfers if stage in (t.sender, t.receiver)]
    own.sort(key=lambda t: t.issued_ns(stage))
    for index, t in enumerate(own):
        what, posted, peer = (
            ("send", t.sent_ns, t.receiver) if t.sender == stage else ("receive", t.posted_ns, t.sender)
        )
        done = t.done_ns - chance.randrange(20) * US
        if posted < begin or job.level is None:
            continue
        start, end = ahead + posted, ahead + done
        met = ahead + max(t.sent_ns, t.posted_ns) if job.overlapping else None
        operator = Operator(
            what, group_of(column), index, start, end, stage, peer, BYTES, batched=job.batched, met_ns=met
        )
        rec.operators.append((t.step, operator))
        sides.add(column, t, what, rec.rank, start, end)


def _reduce(rec: Recording, job: Job, run: Simulation, ahead: int, chance: random.Random) -> None:
    """One all-reduce of all ranks a step."""
    stage, _ = job.place(rec.rank)
    for step, done in zip(sorted({b.step for b in run.blocks}), run.reduced, strict=True):
        last = max(b.end_ns for b in run.blocks if b.rank == stage and b.step == step and b.kind != "OPT")
        end = done - chance.randrange(20) * US
        if job.level is not None:
            rec.operators.append((step, Operator("allReduce", WORLD, step, ahead + last + 10 * US, ahead + end)))


def main() -> None:
    here = Path(__file__).resolve().parent.parent
    write(here / "ascend", skew_ns=2_300_000)
    write(here / "mindspore", microbatches=4, steps=1, skew_ns=-1_400_000, text=True, seed=2)


if __name__ == "__main__":
    main()
