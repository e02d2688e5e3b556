"""Runs of every format, and plausible damage to their files: nothing that a reader could call broken."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from samples.generators import ascend as generate_ascend
from samples.generators import kineto as generate_kineto
from samples.generators import nsys as generate_nsys
from samples.generators import paddle as generate_paddle
from samples.generators import recorder as generate_recorder
from samples.generators import rocpd as generate_rocpd
from samples.generators import torch_pftrace
from samples.generators.kineto_trace import Trace
from samples.generators.operation_table import Job as Operations
from tests.support.many_ranks import ManyRanks, write
from trace_export import load

Rows = list[Any]
Change = Callable[[Rows, random.Random], Rows]


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
        for (step,), own in of_rank.group_by("step", maintain_order=True):
            content[str(step)] = {"total": blocks["end"].max() + 5.0} | {
                f"{name}_{end}": own.filter(kind=kind)[end].to_list()
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
    for (rank,), own in _blocks(folder, seed).group_by("rank", maintain_order=True):
        trace = Trace()
        for _, step, kind, microbatch, start, end in own.iter_rows():
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
    "primus": (_primus, "pp_rank_*.json"),
    "megascan": (_megascan, "data.json"),
    "pftrace": (_pftrace, "rank*.pftrace"),
}
"""How to make a run with that seed, and which of its files are damaged."""
ONE_FILE = ("operation_table", "parquet", "csv", "megascan")
OF_TASKS = ("ascend", "ascend, text", "ascend, kernels", "mindspore")
"""Formats that record the device tasks of a block, and no launches of them. One that is missing by itself cannot be
seen: the block begins or ends with the next one."""


def make(kind: str, folder: Path, seed: int = 1) -> list[Path]:
    """A run in a new folder; the files to damage, one for each rank."""
    folder.mkdir()
    RUNS[kind][0](folder, seed)
    (folder / "truth.csv").unlink(missing_ok=True)
    return sorted(folder.rglob(RUNS[kind][1]))


def rewrite(path: Path, change: Change, chance: random.Random) -> None:
    """The file with its records changed: lines, events, or rows of the tables of a database that have times."""
    if path.suffix in (".sqlite", ".db"):
        _rewrite_database(path, change, chance)
    elif path.suffix == ".parquet":
        frame = pl.read_parquet(path)
        pl.DataFrame(change(frame.rows(), chance), frame.schema, orient="row").write_parquet(path)
    elif path.suffix in (".gz", ".json"):
        content = path.read_bytes()
        packed = path.suffix == ".gz"
        document = json.loads(gzip.decompress(content) if packed else content)
        if "pp_rank" in path.name:
            path.write_text(json.dumps(dict(change(list(document.items()), chance))))
            return
        events = document["traceEvents"] if isinstance(document, dict) else document
        meta = [event for event in events if event.get("ph") == "M"]
        events[:] = meta + change([event for event in events if event.get("ph") != "M"], chance)
        changed = json.dumps(document).encode()
        path.write_bytes(gzip.compress(changed, mtime=0) if packed else changed)
    elif path.suffix == ".pftrace":
        trace = torch_pftrace.perfetto.Trace.FromString(gzip.decompress(path.read_bytes()))
        head = [
            packet for packet in trace.packet if not packet.HasField("timestamp") or packet.HasField("clock_snapshot")
        ]
        rest = [packet for packet in trace.packet if packet not in head]
        changed_trace = torch_pftrace.perfetto.Trace(packet=head + change(rest, chance))
        path.write_bytes(gzip.compress(changed_trace.SerializeToString(), mtime=0))
    else:
        lines = path.read_text().splitlines(keepends=True)
        head = 1 if path.suffix in (".csv", ".blocks") else 0
        path.write_text("".join(lines[:head] + change(lines[head:], chance)))


TIMES = ("startNs", "start", "timestamp")


def _rewrite_database(path: Path, change: Change, chance: random.Random) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA legacy_alter_table = ON")  # renames a table that views name
        seed = chance.random()
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name").fetchall():
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            time = next((column for column in TIMES if column in columns), None)
            if time is None:
                continue
            rows = db.execute(f'SELECT * FROM "{table}" ORDER BY "{time}"').fetchall()
            db.execute(f'CREATE TABLE "{table} changed" AS SELECT * FROM "{table}" WHERE 0')  # without keys
            marks = ",".join("?" * len(columns))
            changed = change(rows, random.Random(seed))  # the same part of every table
            db.executemany(f'INSERT INTO "{table} changed" VALUES ({marks})', changed)
            db.execute(f'DROP TABLE "{table}"')
            db.execute(f'ALTER TABLE "{table} changed" RENAME TO "{table}"')
        db.commit()


def truncated(rows: Rows, chance: random.Random) -> Rows:
    """The end is missing."""
    return rows[: int(len(rows) * chance.uniform(0.2, 0.98))]


def late(rows: Rows, chance: random.Random) -> Rows:
    """The begin is missing."""
    return rows[int(len(rows) * chance.uniform(0.02, 0.8)) :]


def holed(rows: Rows, chance: random.Random) -> Rows:
    """A piece in the middle is missing."""
    begin, length = chance.uniform(0.1, 0.7), chance.uniform(0.05, 0.2)
    return rows[: int(len(rows) * begin)] + rows[int(len(rows) * (begin + length)) :]


def thinned(rows: Rows, chance: random.Random) -> Rows:
    """Every twentieth record is missing."""
    return [row for row in rows if chance.random() > 0.05]


def doubled(rows: Rows, chance: random.Random) -> Rows:
    return rows + rows


def half_doubled(rows: Rows, chance: random.Random) -> Rows:
    """As an upload that was begun twice."""
    return rows[: int(len(rows) * chance.uniform(0.1, 0.9))] + rows


def shuffled(rows: Rows, chance: random.Random) -> Rows:
    return chance.sample(rows, len(rows))


OF_RECORDS: dict[str, Change] = {
    "truncated": truncated, "late": late, "holed": holed, "thinned": thinned, "doubled": doubled,
    "half doubled": half_doubled, "shuffled": shuffled,
}  # fmt: skip


def swapped(files: list[Path], other: list[Path], chance: random.Random) -> None:
    """Two files have changed their names."""
    one, two = chance.sample(files, 2)
    first = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(first)


def copied(files: list[Path], other: list[Path], chance: random.Random) -> None:
    """One file lies in place of another."""
    one, two = chance.sample(files, 2)
    one.write_bytes(two.read_bytes())


def of_another_run(files: list[Path], other: list[Path], chance: random.Random) -> None:
    """The file of one rank is that of the same rank in another run."""
    at = chance.randrange(len(files))
    files[at].write_bytes(other[at].read_bytes())


OF_FILES = {"swapped": swapped, "copied": copied, "of another run": of_another_run}
CASES = [
    *((kind, damage) for kind in RUNS for damage in OF_RECORDS if kind not in OF_TASKS or damage != "thinned"),
    *((kind, damage) for kind in RUNS for damage in OF_FILES if kind not in ONE_FILE),
]
