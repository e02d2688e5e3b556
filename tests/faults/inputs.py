"""One tiny sound input of each format, and how to break it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from samples.generators import ascend as generate_ascend
from samples.generators import nsys as generate_nsys
from samples.generators import paddle as generate_paddle
from samples.generators import recorder as generate_recorder
from samples.generators import rocpd as generate_rocpd
from samples.generators.kineto_trace import Trace
from samples.generators.operation_table import Job
from tests.support.many_ranks import ManyRanks, write
from trace_export.sources.find import find
from trace_export.sources.source import Source


@dataclass(frozen=True)
class Input:
    """`make` puts the input into an empty folder; `files` are those to break, one at a time: the reader's first."""

    make: Callable[[Path], None]
    files: tuple[str, ...]

    def source(self, folder: Path) -> Source:
        """The input as the walk over its folder sees it."""
        self.make(folder)
        (source,) = find(folder).sources
        return source


def _paddle(folder: Path) -> None:
    generate_paddle.write(folder, stages=1, microbatches=2, steps=2)
    (folder / "truth.csv").unlink()
    (folder / "envlog.0").write_text("PADDLE_GLOBAL_RANK=0\nPADDLE_LOCAL_RANK=0\n")


def _dygraph(folder: Path) -> None:
    names = [f"{kind}{m}_VP{c}" for c in (0, 1) for m in (0, 1) for kind in "FB"]
    place = {"cat": "virtual pipeline timeline", "pid": 0, "tid": 1}
    events = [
        {"name": name, **place, "ph": ph, "ts": 1_701_829_911_000 + 10 * n + (ph == "E")}
        for n, name in enumerate(names * 2)
        for ph in "BE"
    ]
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "profile_record_tmp_file_for_rank_0").write_text(text)


def _nsys(folder: Path) -> None:
    generate_nsys.write(folder, stages=1, microbatches=2, steps=1, hosts=1, clock_errors_ns=(0,))
    (folder / "truth.csv").unlink()


def _rocpd(folder: Path) -> None:
    generate_rocpd.write(folder, stages=1, microbatches=2, steps=1, booted_ns=(10**12,))
    (folder / "truth.csv").unlink()
    (folder / "node0" / "4000_results.db").rename(folder / "4000_results.db")
    (folder / "node0").rmdir()


def _ascend(folder: Path, text: bool = False) -> None:
    """The first of two ranks."""
    generate_ascend.write(folder, stages=2, microbatches=2, steps=2, hosts=1, text=text)
    (folder / "truth.csv").unlink()
    (second,) = folder.glob("node0_4001_*")
    shutil.rmtree(second)


def _mindspore(folder: Path) -> None:
    _ascend(folder, text=True)


def _kineto(folder: Path) -> None:
    trace = Trace()
    for i, name in enumerate(("te:F0.0 stage=0 step=1 rank=0", "PP:0F0", "F1.0.0", "te:B0.0", "ProfilerStep#1")):
        at, ran = 100_000 * (i + 1), 10_000_000 * (i + 1)
        trace.range(at, at + 50_000, name, cat="cpu_op" if name.startswith("te:") else "user_annotation")
        trace.kernel(ran, ran + 1_234, trace.call(at + 7, thread="autograd"))
    recorded = {
        "Collective name": "send",
        "Dst Rank": 1,
        "Process Group Name": "2",
        "dtype": "Half",
        "In msg nelems": 3,
    }
    trace.kernel(5, 99, trace.call(3), name="ncclDevKernel_SendRecv", **recorded)
    trace.write(folder / "one.pt.trace.json")


def _recorder(folder: Path) -> None:
    generate_recorder.write(folder, stages=1, microbatches=2, steps=2, hosts=1)


def _operations(folder: Path) -> None:
    Job(stages=2, microbatches=2, replicas=1, steps=(0,)).write(folder)


def _primus(folder: Path) -> None:
    times = {"total": 40.0, "fwd_start": [1.0, 3.0], "fwd_end": [2.0, 4.0]}
    times |= {"bwd_start": [5.0, 7.0], "bwd_end": [6.0, 9.0]}
    (folder / "pp_rank_0.json").write_text(json.dumps({"1": times, "2": times}))
    (folder / "config.json").write_text(json.dumps({"pp_size": 1, "vp_size": 1, "num_mbs": 2}))


def _megascan(folder: Path) -> None:
    place, numbers = {"pid": 0, "tid": 0}, {"model_chunk": 0, "pp_rank": 0, "iteration": 0}
    events = [
        {"name": name, "ph": ph, "ts": 10**11 * (4 * m + 2 * b + (ph == "E")), **place,
         "args": numbers | {"microbatch": m} if ph == "E" else {}}
        for m in range(8) for b, name in enumerate(("forward", "backward")) for ph in "BE"
    ]  # fmt: skip
    (folder / "iter0.json").write_text(json.dumps(events))


def _span_table(folder: Path) -> None:
    write(folder, ManyRanks(stages=1, tensor=2, replicas=1, microbatches=2, steps=2))
    (folder / "node00000" / "blocks.spans.parquet").rename(folder / "node0.spans.parquet")
    (folder / "node00000").rmdir()


INPUTS = {
    "paddle": Input(_paddle, ("workerlog.0", "envlog.0")),
    "paddle_dygraph": Input(_dygraph, ("profile_record_tmp_file_for_rank_0",)),
    "nsys": Input(_nsys, ("node0.sqlite",)),
    "rocpd": Input(_rocpd, ("4000_results.db",)),
    "kineto": Input(_kineto, ("one.pt.trace.json",)),
    "ascend": Input(_ascend, ("ascend_pytorch_profiler_0.db", "profiler_info_0.json")),
    "recorder": Input(_recorder, ("rank0.blocks",)),
    "operation_table": Input(_operations, ("trace-made.parquet",)),
    "span_table": Input(_span_table, ("node0.spans.parquet",)),
    "primus": Input(_primus, ("pp_rank_0.json", "config.json")),
    "megascan": Input(_megascan, ("iter0.json",)),
    "mindspore": Input(
        _mindspore, ("trace_view.json", "kernel_details.csv", "profiler_metadata.json", "profiler_info_0.json")
    ),
}
