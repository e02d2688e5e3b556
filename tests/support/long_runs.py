"""Long recordings of a pipeline, made quickly: a short run whose files are repeated. One source a rank."""

import random
import re
import sqlite3
from pathlib import Path

from samples.generators import ascend as generate_ascend
from samples.generators import kineto as generate_kineto
from samples.generators import nsys as generate_nsys
from samples.generators import paddle as generate_paddle
from samples.generators import rocpd as generate_rocpd
from samples.generators.ascend_export import ABSENT, FIRST_MARK
from samples.generators.kineto_trace import Trace
from tests.support.databases import changing

STAGES, MICROBATCHES, STEPS = 4, 6, 2
"""Of the short run."""
PAUSE_NS = 3_000_000
ON_HOST = ("user_annotation", "cpu_op")
CALLS = 1 << 20
"""More launches than one round has, so that no correlation id comes twice."""
_TIME = re.compile(r'"ts": (-?\d+)\.(\d{3})')
_CALL = re.compile(r'"(correlation|External id)": (\d+)')
_STEP = re.compile(r" step=(\d+)")
_RECORD = re.compile(r"job_start_time = ([\d.]+), job_end_time = ([\d.]+)")


def nsys(folder: Path, times: int, stages: int = STAGES, kernels: int = 4) -> None:
    """Exports of Nsight Systems, their rows by time as nsys writes them; `kernels` in a block."""
    chance = random.Random(1)
    blocks = generate_nsys.blocks_of(stages, MICROBATCHES, STEPS, chance)
    exports = [generate_nsys.Export(host=f"node{rank}") for rank in range(stages)]
    ranks = [generate_nsys.Rank(export, rank, 0, kernels) for rank, export in enumerate(exports)]
    generate_nsys.fill(ranks, blocks, chance)
    for rank in ranks:
        path = rank.export.write(folder / f"rank{rank.rank}.sqlite")
        with changing(path) as db:
            (last,) = db.execute('SELECT max("end") FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
            db.execute("DELETE FROM NVTX_EVENTS WHERE text LIKE 'iter%'")  # steps are found by the optimizers
            calls = {"correlationId": str(CALLS)}
            for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"):
                _repeat(db, table, times, {"start": str(last + PAUSE_NS), "end": str(last + PAUSE_NS)} | calls, "start")


def rocpd(folder: Path, times: int, stages: int = STAGES, schema: int = 3) -> None:
    """Databases of rocprofv3, their regions and kernels by time; only those of the first round have their events."""
    generate_rocpd.write(folder, stages=stages, microbatches=MICROBATCHES, steps=STEPS, schema=schema)
    for path in folder.rglob("*.db"):
        with changing(path) as db:
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            tables = [n for n in names if n.startswith(("rocpd_region_", "rocpd_kernel_dispatch_"))]
            suffix = next(n for n in tables if n.startswith("rocpd_region")).removeprefix("rocpd_region")
            steps = f"SELECT id FROM rocpd_event{suffix} WHERE extdata LIKE '%iter%'"
            db.execute(f"DELETE FROM rocpd_region{suffix} WHERE event_id IN ({steps})")
            first = min(db.execute(f"SELECT min(start) FROM {table}").fetchone()[0] for table in tables)
            last = max(db.execute(f'SELECT max("end") FROM {table}').fetchone()[0] for table in tables)
            for table in tables:
                _number_by_time(db, table)
                (count,) = db.execute(f"SELECT max(id) FROM {table}").fetchone()
                period = str(last - first + PAUSE_NS)
                _repeat(db, table, times, {"start": period, "end": period, "id": str(count)}, "start")


def _number_by_time(db: sqlite3.Connection, table: str) -> None:
    places = f"SELECT id, row_number() OVER (ORDER BY start, id) AS place FROM {table}"
    db.execute(f"CREATE TEMP TABLE places AS {places}")
    db.execute(f"UPDATE {table} SET id = -(SELECT place FROM places WHERE places.id = {table}.id)")
    db.execute(f"UPDATE {table} SET id = -id")
    db.execute("DROP TABLE places")


def ascend(folder: Path, times: int, stages: int = STAGES, kernels: int = 5) -> None:
    """Databases of torch_npu."""
    generate_ascend.write(folder, stages, MICROBATCHES, STEPS, hosts=stages, kernels=kernels)
    for path in folder.rglob("ascend_pytorch_profiler_*.db"):
        with changing(path) as db:
            first, last = db.execute("SELECT min(startNs), max(endNs) FROM TASK").fetchone()
            counts = {
                table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("TASK", "MSTX_EVENTS", "COMMUNICATION_OP")
            }
            period = str(last - first + PAUSE_NS)
            mark = (
                f"CASE WHEN connectionId BETWEEN {FIRST_MARK} AND {ABSENT - 1} THEN {counts['MSTX_EVENTS']} ELSE 0 END"
            )
            shifts = {
                "startNs": period, "endNs": period, "connectionId": mark, "globalTaskId": str(counts["TASK"]),
                "opId": str(counts["COMMUNICATION_OP"]), "id": str(STEPS),
            }  # fmt: skip
            for table in ("TASK", "MSTX_EVENTS", "COMMUNICATION_OP", "STEP_TIME"):
                _repeat(db, table, times, shifts, "startNs")
            for table in ("COMPUTE_TASK_INFO", "COMMUNICATION_TASK_INFO"):
                _repeat(db, table, times, shifts, "globalTaskId")
    (folder / "truth.csv").unlink()


def _repeat(db: sqlite3.Connection, table: str, times: int, shifts: dict[str, str], order: str) -> None:
    """The rows of a table `times` times, by `order`, each time moved on by `shifts` (column → an SQL expression)."""
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    moved = ", ".join(f'"{c}" + k.v * ({shifts[c]})' if c in shifts else f'"{c}"' for c in columns)
    rounds = f"(WITH RECURSIVE k(v) AS (SELECT 0 UNION ALL SELECT v + 1 FROM k WHERE v < {times - 1}) SELECT v FROM k)"
    db.execute(f"CREATE TEMP TABLE once AS SELECT * FROM {table} ORDER BY {order}")
    db.execute(f"DELETE FROM {table}")
    db.execute(f"INSERT INTO {table} SELECT {moved} FROM {rounds} k CROSS JOIN once ORDER BY k.v, once.rowid")
    db.execute("DROP TABLE once")


def paddle(folder: Path, times: int, stages: int = STAGES) -> None:
    """Logs of Paddle's static graph."""
    job = generate_paddle.Job(stages, MICROBATCHES, range(2, 2 + STEPS), announced=False)
    blocks = job.blocks()
    folder.mkdir(parents=True, exist_ok=True)
    length_ms = (max(b.end_ns for b in blocks) - min(b.start_ns for b in blocks) + PAUSE_NS) / 1e6
    for rank in range(stages):
        parts = _RECORD.split(generate_paddle.log(job, blocks, rank))
        with (folder / f"workerlog.{rank}").open("w") as file:
            for number in range(times):
                moved = parts.copy()
                for place in (1, 2):
                    moved[place::3] = [f"{float(t) + number * length_ms:.6f}" for t in parts[place::3]]
                moved[1::3] = [f"job_start_time = {start}, " for start in moved[1::3]]
                moved[2::3] = [f"job_end_time = {end}" for end in moved[2::3]]
                file.write("".join(moved))


def kineto(folder: Path, times: int, stages: int = STAGES, operators: int = 0) -> None:
    """Traces of torch.profiler: what happened on the CPU before what happened on the GPU, both by time. `operators`
    before each block."""
    chance = random.Random(1)
    blocks = generate_nsys.blocks_of(stages, MICROBATCHES, STEPS, chance)
    ranks = [generate_kineto.Rank(rank, 0) for rank in range(stages)]
    for block in blocks:
        rank = ranks[block.rank]
        for start in range(block.start_ns - 90_000, block.start_ns - 90_000 + 10 * operators, 10):
            rank.trace.range(start, start + 9, "aten::linear", cat="cpu_op")
        rank.block(block, chance)
    length = max(b.end_ns for b in blocks) + PAUSE_NS
    for rank in ranks:
        events = sorted(rank.trace.events, key=lambda event: event["ts"].ns)
        trace = Trace(rank=rank.rank, world=stages, host=f"node{rank.rank}")
        head, tail = trace.text().split("\n  ],")
        path = folder / f"rank{rank.rank}.pt.trace.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            file.write(head)
            for on_host in (True, False):
                trace.events = [event for event in events if (event["cat"] in ON_HOST) is on_host]
                text = trace.text().split('"traceEvents": [\n', 1)[1].split("\n  ],")[0]
                for number in range(times):
                    file.write(("," if number or not on_host else "") + _later(text, number, length))
            file.write("\n  ]," + tail)


def _later(events: str, number: int, length: int) -> str:
    """The events of the round `number`, which is `length` ns long."""

    def time(result: re.Match[str]) -> str:
        ns = int(result[1]) * 1000 + int(result[2]) + number * length
        return f'"ts": {ns // 1000}.{ns % 1000:03d}'

    moved = _CALL.sub(lambda m: f'"{m[1]}": {int(m[2]) + number * CALLS}', _TIME.sub(time, events))
    return _STEP.sub(lambda m: f" step={int(m[1]) + number * STEPS}", moved)
