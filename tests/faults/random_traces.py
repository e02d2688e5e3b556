"""Captures without marks, tables in Parquet, Perfetto traces and the files of Primus and MegaScan,
whose sizes are drawn at random as in `random_sizes`."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl

from samples.generators import torch_pftrace, unmarked
from samples.generators.nsys_export import Export
from tests.faults import random_sizes, sizes
from tests.faults.random_sizes import count
from tests.support.torch_traces import one_block

WORK = (unmarked.SEND_RECV, unmarked.REDUCE, unmarked.COUNT, unmarked.SUM, unmarked.ADAM, "gemm", "gemm_{n}")
"""Names of kernels that say what they are, and of others."""


def number(chance: random.Random) -> int:
    return chance.choice((*random_sizes.NUMBERS, count(chance, 10**18)))


def cycle(chance: random.Random, n: int) -> int:
    """n, a constant, or numbers that repeat."""
    return chance.choice((n, 7, n % count(chance, 10**5), n // count(chance, 10**4)))


def _program(chance: random.Random) -> unmarked.Program:
    schedule = chance.choice(("1f1b", "interleaved", "vee", "zb-h1"))
    stages = chance.choice((2, 4))
    return unmarked.Program(
        schedule, stages, 2 * stages, steps=chance.randint(1, 3), layers=chance.randint(1, 8),
        experts=chance.random() < 0.3, graphs=chance.random() < 0.3, operators=chance.random() < 0.3,
        one_thread=chance.random() < 0.3,
    )  # fmt: skip


def unmarked_nsys(chance: random.Random, folder: Path) -> None:
    """Further launches and kernels between those of a sound capture."""
    unmarked.write(folder, _program(chance), seed=chance.randrange(1000))
    rows, apart = count(chance, 60_000), count(chance, 10**7)
    key = chance.choice(("9000000 + n", "9000000 + n % 7", "9000000", "n"))
    name = f"{chance.choice(('700000', '700001'))} + n % {count(chance, 1000)}"
    thread = f"(SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1 OFFSET {chance.randrange(300)})"
    begin = f"(SELECT min(start) FROM CUPTI_ACTIVITY_KIND_RUNTIME) + n * {apart}"
    texts = ", ".join(f"({700_000 + n}, '{text.replace('{n}', str(n))}')" for n, text in enumerate(WORK * 150))
    with closing(sqlite3.connect(folder / "node0.sqlite")) as db:
        db.execute(f"INSERT OR REPLACE INTO StringIds (id, value) VALUES {texts}")
        call = "(SELECT nameId FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1)"
        db.execute(
            'INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId)'
            f" SELECT {begin}, {begin} + 5, {thread}, {key}, {call} FROM {sizes.numbers(rows)}"
        )
        db.execute(
            'INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, "end", deviceId, streamId, correlationId, globalPid,'
            f" shortName, demangledName) SELECT {begin} + {count(chance, 10**6)}, {begin} + {count(chance, 10**9)},"
            f" {chance.choice(('0', 'n % 9'))}, {chance.choice(('7', 'n'))}, {key}, ({thread} >> 24) << 24,"
            f" {name}, {name} FROM {sizes.numbers(rows)}"
        )
        db.commit()


def unmarked_kineto(chance: random.Random, folder: Path) -> None:
    """The same in the trace of one rank."""
    unmarked.write(folder, _program(chance), seed=chance.randrange(1000), kineto=True, rocm=chance.random() < 0.3)
    path = chance.choice(sorted(folder.iterdir()))
    document = json.loads(gzip.decompress(path.read_bytes()))
    calls = [e for e in document["traceEvents"] if e.get("cat", "").endswith(("_runtime", "_driver"))]
    call, apart = chance.choice(calls), count(chance, 10**7)
    for n in range(count(chance, 30_000)):
        key, at = 9_000_000 + cycle(chance, n), float(call["ts"]) + n * apart / 1000
        name = chance.choice(WORK).replace("{n}", str(n))
        launch = {**call, "ts": at, "dur": 5, "args": {"correlation": key}}
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": cycle(chance, n), "ts": at + 9, "dur": 5,
                  "args": {"correlation": key, "stream": cycle(chance, n), "device": 0}}  # fmt: skip
        document["traceEvents"] += [launch, kernel]
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def nsys_tables(chance: random.Random, folder: Path) -> None:
    """Tables of Nsight Systems in Parquet or Arrow, the rows of some many times over."""
    export, suffix = Export(epoch_ns=0), chance.choice((".parquet", ".arrow"))
    for n in range(20):
        export.range(0, 1000 * n, 1000 * n + 900, f"F{n}.0.0")
        export.kernel(0, 1000 * n + 100, 1000 * n + 800, export.call(0, 1000 * n + 10))
    tables = export.write_folder(folder / "export", suffix)
    for path in chance.sample(sorted(tables.iterdir()), 2):
        frame = pl.read_parquet(path) if suffix == ".parquet" else pl.read_ipc(path.read_bytes())
        row = pl.int_range(pl.len())
        changed = chance.choice([c for c, kind in frame.schema.items() if kind == pl.Int64] or ["id"])
        drawn = chance.choice((row, row % count(chance, 10**5), row * 0 + number(chance), row * count(chance, 10**9)))
        frame = pl.concat([frame] * count(chance, 10_000)).with_columns(drawn.cast(pl.Int64).alias(changed))
        frame.write_parquet(path) if suffix == ".parquet" else frame.write_ipc(path)


def pftrace(chance: random.Random, folder: Path) -> None:
    """Further packets of some kinds, many of each."""
    content = torch_pftrace.encoded(one_block())
    parts = []
    for _ in range(chance.randint(1, 3)):
        kind, rows = chance.choice(("begins", "slices", "names", "threads", "tasks")), count(chance, 60_000)
        fixed = number(chance) % (1 << 63)
        for n in range(rows):
            parts += [sizes.message(b"\x0a", packet) for packet in _packets(kind, n, cycle(chance, n), fixed)]
    packed = chance.random() < 0.5
    content += b"".join(parts)
    (folder / "a.pftrace").write_bytes(gzip.compress(content, 1) if packed else content)


def _packets(kind: str, n: int, repeated: int, fixed: int) -> Iterator[bytes]:
    at, other = sizes.varint(1_000_000 + 10 * n), sizes.varint(repeated)
    if kind == "names":
        yield sizes.interned(repeated)
    elif kind == "threads":
        thread = b"\x08\x01\x10" + other + sizes.message(b"\x2a", b"thread")
        yield sizes.message(b"\xe2\x03", b"\x08" + sizes.varint(n) + sizes.message(b"\x22", thread))
    elif kind == "tasks":
        task = b"\x10" + sizes.varint(fixed) + b"\x68" + other + b"\x70\x01"
        yield b"\x40" + at + sizes.message(b"\xaa\x03", task)
    else:
        event = b"\x48\x01\x50\x01\x58" + other + b"\x18\x01"
        yield b"\x40" + at + sizes.message(b"\x5a", event)
        if kind == "slices":
            yield b"\x40" + sizes.varint(fixed) + sizes.message(b"\x5a", b"\x48\x02\x58" + other)


def primus(chance: random.Random, folder: Path) -> None:
    ranks = count(chance, 300)
    iterations = count(chance, 100_000 // ranks)
    blocks = count(chance, 100_000 // (ranks * iterations))
    sizes_of = {"pp_size": number(chance), "num_mbs": number(chance), "vp_size": chance.choice((1, 1, number(chance)))}
    (folder / "config.json").write_text(json.dumps(sizes_of))
    length, depth = count(chance, 10**6), count(chance, 100_000) if chance.random() < 0.3 else 0
    deep = ',"deep":' + "[" * depth + "]" * depth if depth else ""
    for rank in range(ranks):
        starts = [n * length for n in range(blocks)]
        times = {"fwd_start": starts, "fwd_end": [at + 1 for at in starts], "total": chance.choice((length, 1e8))}
        times |= {"bwd_start": starts, "bwd_end": chance.choice(([at + 2 for at in starts], [number(chance)] * blocks))}
        text = json.dumps(times)[:-1] + deep + "}"
        step = chance.choice((1, 9999))
        content = ",".join(
            f'"{n * step}":{text if n < 9 or not depth else json.dumps(times)}' for n in range(iterations)
        )
        (folder / f"pp_rank_{rank}.json").write_text("{" + content + "}")


def megascan(chance: random.Random, folder: Path) -> None:
    rows, pairs, fixed = count(chance, 20_000), chance.random() < 0.5, number(chance)
    columns = {
        name: [chance.choice((0, cycle(chance, n), fixed)) for n in range(rows)]
        if chance.random() < 0.3 else [0] * rows
        for name in ("pid", "microbatch", "model_chunk", "pp_rank", "iteration")
    }  # fmt: skip
    events = []
    for n in range(rows):
        numbers = {name: values[n] for name, values in columns.items() if name != "pid"}
        event = {"name": chance.choice(("forward", "backward", "x{n}")).replace("{n}", str(n)), "ts": 10 * n,
                 "pid": columns["pid"][n], "tid": cycle(chance, n)}  # fmt: skip
        if pairs:
            events.append({**event, "ph": "B", "args": {}})
            events.append({**event, "ph": "E", "ts": 10 * n + chance.choice((5, fixed)), "args": numbers})
        else:
            events.append({**event, "ph": "X", "dur": chance.choice((5, fixed)), "args": numbers})
    (folder / "iter0.json").write_text(json.dumps(events))


DRAWS: dict[str, random_sizes.Draw] = {
    "unmarked nsys": unmarked_nsys, "unmarked kineto": unmarked_kineto, "nsys tables": nsys_tables,
    "pftrace": pftrace, "primus": primus, "megascan": megascan,
}  # fmt: skip
