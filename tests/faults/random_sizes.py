"""Inputs of sizes drawn at random: how many records, how deep they nest, how many different names, threads, ids and
groups they have, and how large their numbers are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl

from tests.faults import sizes
from tests.faults.inputs import INPUTS

Draw = Callable[[random.Random, Path], None]
NUMBERS = (0, 1, -1, 2**31 - 1, 2**31, 2**53, 10**18, 2**62, 2**63 - 1, -(2**63))
NAMES = (
    "F1.0.0", "B2.0.0", "W0.0.0", "te:F{n} stage=0 step={n} rank=0", "PP:{n}F{n}", "Forward {n}", "iter_{n}_{n}",
    "ProfilerStep#{n}", "forward-{n}", "optimizer_step", "SEND_FORWARD.{n}.0.0", "ncclDevKernel_SendRecv", "x{n}",
)  # fmt: skip


def count(chance: random.Random, most: int) -> int:
    """From one to `most`, every order of magnitude as likely as any other."""
    return round(most ** chance.random())


def _number(chance: random.Random) -> int:
    return chance.choice((*NUMBERS, count(chance, 10**18)))


def _cycle(chance: random.Random) -> str:
    """n, or what is left of it by a number: as SQL, ids of some cardinality."""
    return chance.choice(("n", str(abs(_number(chance))), f"n % {count(chance, 10**5)}", f"n / {count(chance, 10**4)}"))


def _interval(chance: random.Random, rows: int) -> str:
    """Start and end of the range n as SQL: side by side, nested, all at once, overlapping, or beyond all times."""
    length = count(chance, 10**9)
    return chance.choice((
        f"n * {length}; (n + 1) * {length}", f"n; {3 * rows} - n", f"{length}; {2 * length}",
        f"n * {length}; n * {length} + {length * count(chance, 1000)}", f"{_number(chance)}; {_number(chance)}",
        f"n; {2**62} + n", f"({rows} - n) * {length}; ({rows} - n) * {length} + 1",
    ))  # fmt: skip


def _sql_name(chance: random.Random) -> str:
    return "'" + chance.choice(NAMES).replace("{n}", f"' || ({_cycle(chance)}) || '") + "'"


def nsys(chance: random.Random, folder: Path) -> None:
    statements = []
    for _ in range(chance.randint(1, 3)):
        rows = count(chance, 100_000)
        thread = f"{sizes.TID} + ({_cycle(chance)}) % {count(chance, 60_000)}"
        statements.append(sizes.ranges(f"{_interval(chance, rows)}; {_sql_name(chance)}; {thread}; NULL", rows))
    rows = count(chance, 100_000)
    statements.append(sizes.calls(f"n * {count(chance, 10**6)}; {sizes.TID}; {_cycle(chance)}", rows))
    statements.append(sizes.kernels(f"{_interval(chance, rows)}; {_cycle(chance)}; 1", rows))
    sizes.database("nsys", *statements)(folder)


def ascend(chance: random.Random, folder: Path) -> None:
    rows = count(chance, 100_000)
    statements = [
        *sizes.without_key("COMPUTE_TASK_INFO"),
        sizes.tasks(f"{_interval(chance, rows)}; {_cycle(chance)}", rows),
        f"INSERT OR REPLACE INTO STRING_IDS SELECT 700000 + n, {_sql_name(chance)} FROM {sizes.numbers(1000)}",
        "INSERT INTO COMPUTE_TASK_INFO (name, globalTaskId, opType)"
        f" SELECT 700000 + n % 1000, {_cycle(chance)}, 0 FROM {sizes.numbers(count(chance, 100_000))}",
        "INSERT INTO MSTX_EVENTS (startNs, endNs, eventType, message, domainId, connectionId)"
        f" SELECT {sizes.FIRST} + n, {sizes.FIRST} + n + {count(chance, 10**9)}, 2, 700000 + n % 1000, 0,"
        f" {_cycle(chance)}"
        f" FROM {sizes.numbers(count(chance, 50_000))}",
    ]  # fmt: skip
    sizes.database("ascend", *statements)(folder)


def _event(chance: random.Random) -> str:
    """One event of a trace, of fields and values drawn at random; {n} counts."""
    field: dict[str, object] = {
        "ph": chance.choice(["X", "X", "X", "B", "E", "s", "f", "i", "M", "?"]),
        "cat": chance.choice(["kernel", "user_annotation", "cpu_op", "cuda_runtime", "gpu_memcpy", "x"]),
        "name": chance.choice(NAMES), "pid": chance.choice([0, 1, "{n}"]), "tid": chance.choice([1, 7, "{n}"]),
        "ts": chance.choice(["{n}", 1, _number(chance), f"{_number(chance)}.5"]),
        "dur": chance.choice([0, 1, 10**6, _number(chance)]),
        "id": chance.choice([1, "{n}"]),
        "args": {chance.choice(["correlation", "stream", "x"]): chance.choice([7, "{n}", _number(chance)])},
    }  # fmt: skip
    kept = {name: value for name, value in field.items() if chance.random() < 0.8}
    text = json.dumps(kept).replace('"{n}"', "{n}")
    depth = count(chance, 100_000) if chance.random() < 0.2 else 0
    return text[:-1] + (", " if kept else "") + '"deep": ' + "[" * depth + "]" * depth + "}" if depth else text


def _events(chance: random.Random) -> str:
    parts = []
    for _ in range(chance.randint(1, 3)):
        event = _event(chance)
        rows = min(count(chance, 200_000), 4_000_000 // len(event) + 1)
        parts += [event.replace("{n}", str(n)) for n in range(rows)]
    return ",".join(parts)


def kineto(chance: random.Random, folder: Path) -> None:
    sizes.text("kineto", "one.pt.trace.json", sizes.kineto(_events(chance), 1))(folder)


def mindspore(chance: random.Random, folder: Path) -> None:
    sizes.text("mindspore", "trace_view.json", sizes.events(_events(chance), 1))(folder)


def paddle(chance: random.Random, folder: Path) -> None:
    threads, jobs = count(chance, 200), chance.choice(["forward", "backward", "job_{n}", "forward{n}", "optimizer"])
    apart, rows = chance.choice([0.0, 0.001, 1.0, 2000.0, 1e9]), count(chance, 30_000)
    lines = [
        sizes.record(n % threads, jobs.replace("{n}", str(n)), sizes.EPOCH_MS + apart * n).replace(
            "micro_batch_id = 0", f"micro_batch_id = {chance.choice((0, n, n % 8))}"
        )
        for n in range(rows)
    ]
    sizes.text("paddle", "workerlog.0", lambda content: content + "".join(lines))(folder)


def dygraph(chance: random.Random, folder: Path) -> None:
    tid, microbatch, chunk = (chance.choice((1, 1, count(chance, 10**9))) for _ in range(3))
    times = count(chance, 300)
    sizes.text("paddle_dygraph", sizes.RECORD, lambda content: content.replace('"tid": 1', f'"tid": {tid}').replace(
        "F1_", f"F{microbatch}_").replace("_VP1", f"_VP{chunk}") * times)(folder)  # fmt: skip


def operation_table(chance: random.Random, folder: Path) -> None:
    """The sound table many times over, with other numbers in some columns."""
    INPUTS["operation_table"].make(folder)
    path = folder / INPUTS["operation_table"].files[0]
    frame = pl.read_parquet(path)
    row, changed = pl.int_range(pl.len()), chance.sample([c for c in frame.columns if c != "optype"], 3)
    numbers = [chance.choice((row % count(chance, 10**5), row // count(chance, 10**4), pl.lit(_number(chance))))
               .cast(pl.Int64).alias(column) for column in changed]  # fmt: skip
    pl.concat([frame] * count(chance, 1000)).with_columns(numbers).write_parquet(path)


def table(chance: random.Random, folder: Path) -> None:
    rows, row = count(chance, 50_000), pl.int_range(pl.len())
    numbers = {
        name: chance.choice((pl.lit(0), row % count(chance, 10**5), row // count(chance, 10**4),
                             pl.lit(count(chance, 10**9))))
        for name in ("rank", "stage", "step", "microbatch", "chunk")
    }  # fmt: skip
    length = count(chance, 10**9)
    start = chance.choice((row * length, row * 0 + 5, (rows - row) * length, row * length + 10**18))
    frame = pl.DataFrame({"n": range(rows)}).select(
        host=pl.lit("h") + (row % count(chance, 1000)).cast(pl.String), origin=pl.lit("device"),
        kind=pl.lit(pl.Series(["F", "B"])).gather(row % 2), start_ns=start, end_ns=start + count(chance, 10**9),
        **numbers,
    )  # fmt: skip
    frame.write_parquet(folder / "spans.parquet")


DRAWS: dict[str, Draw] = {
    "nsys": nsys, "ascend": ascend, "kineto": kineto, "mindspore": mindspore, "paddle": paddle,
    "paddle_dygraph": dygraph, "operation_table": operation_table, "table": table,
}  # fmt: skip
