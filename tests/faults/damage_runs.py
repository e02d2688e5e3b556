"""Runs of every format, to be damaged: small, without a fault, with a file for each rank where the format has one."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl

from samples.generators import ascend as generate_ascend
from samples.generators import kineto as generate_kineto
from samples.generators import nsys as generate_nsys
from samples.generators import paddle as generate_paddle
from samples.generators import recorder as generate_recorder
from samples.generators import rocpd as generate_rocpd
from samples.generators import torch_pftrace
from samples.generators import unmarked as generate_unmarked
from samples.generators.kineto_trace import Trace
from samples.generators.nsys_export import as_folder
from samples.generators.operation_table import Job as Operations
from tests.support.many_ranks import ManyRanks, write
from trace_export import load


def _paddle(folder: Path, seed: int) -> None:
    generate_paddle.write(folder, stages=3, microbatches=4, steps=3, seed=seed)


def _dygraph(folder: Path, seed: int) -> None:
    generate_paddle.write_records(folder, generate_paddle.Job(3, 4, range(2, 5), seed=seed))


def _nsys(folder: Path, seed: int) -> None:
    generate_nsys.write(folder, stages=3, microbatches=4, steps=3, hosts=3, clock_errors_ns=(0, 0, 0), seed=seed)


def _kineto(folder: Path, seed: int) -> None:
    generate_kineto.write(folder, seed)


def _recorder(folder: Path, seed: int) -> None:
    generate_recorder.write(folder, stages=3, microbatches=4, steps=3, hosts=3, clock_errors_ns=(0, 0, 0), seed=seed)


def _ascend(folder: Path, seed: int) -> None:
    generate_ascend.write(folder, stages=3, microbatches=4, steps=3, hosts=3, seed=seed)


def _text(folder: Path, seed: int) -> None:
    job = generate_ascend.Job(3, 4, 3, pipelines_first=True, hosts=3, text=True, seed=seed)
    generate_ascend.record(folder, job)


def _mindspore(folder: Path, seed: int) -> None:
    generate_ascend.write(folder, stages=3, microbatches=4, steps=3, hosts=3, text=True, seed=seed)


def _table(folder: Path, seed: int, suffix: str = "parquet") -> None:
    logs = folder.with_name(folder.name + "_logs")
    logs.mkdir()
    _paddle(logs, seed)
    load(logs).align().write(folder / f"spans.{suffix}")
    shutil.rmtree(logs)


def _csv(folder: Path, seed: int) -> None:
    _table(folder, seed, "csv")


def _operations(folder: Path, seed: int) -> None:
    Operations(stages=3, microbatches=4, replicas=1, steps=(0, 1, 2)).write(folder)


def _span_tables(folder: Path, seed: int) -> None:
    write(folder, ManyRanks(stages=3, tensor=1, replicas=1, microbatches=4, steps=3, seed=seed))


def _rocpd(folder: Path, seed: int) -> None:
    generate_rocpd.write(folder, stages=3, microbatches=4, steps=3, booted_ns=(10**12,) * 3, seed=seed)


def _table_folders(folder: Path, seed: int) -> None:
    _nsys(folder, seed)
    for database in folder.rglob("*.sqlite"):
        as_folder(database, database.with_suffix(".export"), ".parquet")
        database.unlink()


UNMARKED = generate_unmarked.Program(stages=3, microbatches=4, steps=3, layers=1)


def _unmarked_nsys(folder: Path, seed: int) -> None:
    """A capture of each process, as where nsys was started once for each."""
    generate_unmarked.write(folder, UNMARKED, seed=seed)
    whole = folder / "node0.sqlite"
    with closing(sqlite3.connect(whole)) as db:
        processes = [
            p for (p,) in db.execute("SELECT DISTINCT globalTid >> 24 FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY 1")
        ]
    for rank, process in enumerate(processes):
        with closing(sqlite3.connect(shutil.copy(whole, folder / f"rank{rank}.sqlite"))) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
                for column in {"globalTid", "globalPid"} & set(columns):
                    db.execute(f'DELETE FROM "{table}" WHERE {column} >> 24 != {process}')
            db.commit()
    whole.unlink()


def _unmarked_kineto(folder: Path, seed: int) -> None:
    generate_unmarked.write(folder, UNMARKED, seed=seed, kineto=True)


def _blocks(folder: Path, seed: int) -> pl.DataFrame:
    """The forwards and backwards of a run of Paddle: rank, step, kind, microbatch, start and end in ms of the step."""
    logs = folder.with_name(folder.name + "_logs")
    logs.mkdir()
    _paddle(logs, seed)
    spans = load(logs).align().spans.filter(pl.col("kind").is_in(["F", "B"])).sort("start_ns")
    shutil.rmtree(logs)
    zero = pl.col("start_ns").min().over("step")
    return spans.select(
        "rank", "step", "kind", "microbatch",
        start=(pl.col("start_ns") - zero) / 1e6 + 1, end=(pl.col("end_ns") - zero) / 1e6 + 1,
    )  # fmt: skip


def _primus(folder: Path, seed: int) -> None:
    blocks = _blocks(folder, seed)
    (folder / "config.json").write_text(json.dumps({"pp_size": 3, "vp_size": 1, "num_mbs": 4}))
    for (rank,), of_rank in blocks.group_by("rank", maintain_order=True):
        content = {}
        for (step,), here in of_rank.group_by("step", maintain_order=True):
            content[str(step)] = {"total": blocks["end"].max() + 5.0} | {
                f"{name}_{end}": here.filter(kind=kind)[end].to_list()
                for name, kind in (("fwd", "F"), ("bwd", "B")) for end in ("start", "end")
            }  # fmt: skip
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(content))


def _megascan(folder: Path, seed: int) -> None:
    events = [
        {"name": "forward" if kind == "F" else "backward", "ph": "X", "ts": round(start * 1000) + 10**6 * int(step),
         "dur": round((end - start) * 1000), "pid": rank, "tid": 0,
         "args": {"microbatch": microbatch, "model_chunk": 0, "pp_rank": rank, "iteration": step}}
        for rank, step, kind, microbatch, start, end in _blocks(folder, seed).iter_rows()
    ]  # fmt: skip
    (folder / "data.json").write_text(json.dumps(events))


def _pftrace(folder: Path, seed: int) -> None:
    """Of each rank the ranges of its blocks, and a kernel in each."""
    for (rank,), here in _blocks(folder, seed).group_by("rank", maintain_order=True):
        trace = Trace()
        for _, step, kind, microbatch, start, end in here.iter_rows():
            begin, stop = (round(1e6 * (at + 1000 * step)) for at in (start, end))
            trace.range(
                begin, stop - 2000, f"te:{kind}{microbatch}.0 stage={rank} step={step} rank={rank}", cat="cpu_op"
            )
            trace.kernel(begin, stop, trace.call(begin + 500))
        torch_pftrace.write(trace, folder / f"rank{rank}.pftrace")


RUNS: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "paddle": (_paddle, "workerlog.*"),
    "paddle_dygraph": (_dygraph, "profile_record_tmp_file_for_rank_*"),
    "nsys": (_nsys, "*.sqlite"),
    "kineto": (_kineto, "*.pt.trace.json.gz"),
    "recorder": (_recorder, "rank*.blocks"),
    "ascend": (_ascend, "ascend_pytorch_profiler_*.db"),
    "ascend, text": (_text, "trace_view.json"),
    "ascend, kernels": (_text, "kernel_details.csv"),
    "mindspore": (_mindspore, "trace_view.json"),
    "operation_table": (_operations, "trace-made.parquet"),
    "span_table": (_span_tables, "*.spans.parquet"),
    "parquet": (_table, "spans.parquet"),
    "csv": (_csv, "spans.csv"),
    "rocpd": (_rocpd, "*_results.db"),
    "nsys, folders": (_table_folders, "*.export"),
    "unmarked nsys": (_unmarked_nsys, "rank*.sqlite"),
    "unmarked kineto": (_unmarked_kineto, "*.pt.trace.json.gz"),
    "primus": (_primus, "pp_rank_*.json"),
    "megascan": (_megascan, "data.json"),
    "pftrace": (_pftrace, "rank*.pftrace"),
}
"""How to make a run with that seed, and which of its files are damaged."""
ONE_FILE = ("operation_table", "parquet", "csv", "megascan")
OF_TASKS = ("ascend", "ascend, text", "ascend, kernels", "mindspore")
"""Formats that record the device tasks of a block, and no launches of them. One that is missing by itself cannot be
seen: the block begins or ends with the next one."""
