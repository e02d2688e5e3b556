"""Sound inputs in which one thing is of a size that no profiler makes: nesting, repetition, cardinality, a number.

Each has few megabytes. What the files hold in that size is chosen so that work or memory in proportion to more than the
file's size (pairs of rows, a number that is believed) goes far beyond what a file of that size may take.
"""

import gzip
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from samples.generators import torch_pftrace
from samples.generators.nsys_export import Export
from tests.faults.inputs import INPUTS
from tests.support.torch_traces import one_block

ROWS = 40_000
HUGE = 999_999_999


@dataclass(frozen=True)
class Size:
    """`make` puts the input into an empty folder. `says`: words of the one error, where the input is refused."""

    make: Callable[[Path], object]
    says: str = ""


def numbers(count: int) -> str:
    """0 … count - 1 as a table in SQL with the column n."""
    return f"(WITH RECURSIVE k(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM k WHERE n < {count - 1}) SELECT n FROM k)"


def database(kind: str, *statements: str) -> Callable[[Path], None]:
    """The sound input of that kind, after these statements."""

    def make(folder: Path) -> None:
        INPUTS[kind].make(folder)
        with closing(sqlite3.connect(next(folder.rglob(INPUTS[kind].files[0])))) as db:
            for statement in statements:
                db.execute(statement)
            db.commit()

    return make


def text(kind: str, name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    """The sound input of that kind with the content of one file changed."""

    def make(folder: Path) -> None:
        INPUTS[kind].make(folder)
        path = next(folder.rglob(name))
        path.write_text(change(path.read_text()))

    return make


def renumbered(pattern: str, number: int = HUGE) -> Callable[[str], str]:
    """The first number that `pattern` captures becomes another one."""

    def change(content: str) -> str:
        result = re.search(pattern, content)
        assert result, pattern
        return content[: result.start(1)] + str(number) + content[result.end(1) :]

    return change


# --- Nsight Systems

PID = "(SELECT min(globalTid) >> 24 FROM NVTX_EVENTS)"
TID = "(SELECT min(globalTid) FROM NVTX_EVENTS)"
COLUMNS = 'NVTX_EVENTS (start, "end", eventType, text, globalTid, textId)'


def ranges(what: str, count: int = ROWS) -> str:
    """Inserts this many ranges; `what`: start, end, text, globalTid and textId as SQL of the number n."""
    start, end, name, thread, text_id = what.split("; ")
    return f"INSERT INTO {COLUMNS} SELECT {start}, {end}, 59, {name}, {thread}, {text_id} FROM {numbers(count)}"


def kernels(what: str, count: int = ROWS) -> str:
    start, end, correlation, name = what.split("; ")
    return (
        'INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, "end", deviceId, streamId, correlationId, globalPid, shortName)'
        f" SELECT {start}, {end}, 0, 7, {correlation}, {PID} << 24, {name} FROM {numbers(count)}"
    )


def calls(what: str, count: int = ROWS) -> str:
    start, thread, correlation = what.split("; ")
    return (
        'INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId) SELECT'
        f" {start}, {start} + 1, {thread}, {correlation}, (SELECT id FROM StringIds WHERE value LIKE 'cudaLaunch%')"
        f" FROM {numbers(count)}"
    )


LONG = "printf('%.*c', 1000000, 'x')"
FUSED = "rtrim(replace(hex(zeroblob(9000)), '00', 'SEND_FORWARD.1.0.0_'), '_')"
NSYS = {
    "nested ranges": database(
        "nsys",
        ranges(f"n; {10 * ROWS} - n; 'F1.0.0'; {TID}; NULL"),
        ranges(f"{ROWS} + 2 * n; {ROWS} + 2 * n + 1; 'B1.0.0'; {TID}; NULL"),
        calls(f"{ROWS} + n; {TID}; 1000 + n"),
    ),
    "a thread for each range": database(
        "nsys", ranges(f"n; n + 100; 'F1.0.0'; {TID} + n % 60000; NULL"), calls(f"n; {TID} + n % 60000; 1000 + n")
    ),
    "a name of a megabyte for all": database(
        "nsys",
        f"INSERT INTO StringIds (id, value) VALUES (777777, {LONG} || 'F1.0.0')",
        ranges(f"n; n + 1; NULL; {TID}; 777777"),
        kernels("n; n + 1; -5; 777777"),
    ),
    "one string id for all": database(
        "nsys",
        f"INSERT INTO StringIds (id, value) SELECT 777777, 'F1.0.' || n FROM {numbers(2000)}",
        ranges(f"n; n + 1; NULL; {TID}; 777777", 20_000),
    ),
    "a name for each range": database("nsys", ranges(f"n; n + 1; 'F' || n || '.0.0'; {TID}; NULL")),
    "a transfer many times in one name": database("nsys", ranges(f"n; n + 1; {FUSED}; {TID}; NULL", 50)),
    "row ids far apart": database(
        "nsys",
        f"INSERT INTO {COLUMNS.replace('(start', '(rowid, start')} SELECT 1000 + n * 300000, n, n + 1, 59, 'F1.0.0',"
        f" {TID}, NULL FROM {numbers(20_000)}",
    ),
    "diagnostics without end": database(
        "nsys",
        "CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)",
        f"INSERT INTO DIAGNOSTIC_EVENT SELECT n, 3, 'event ' || n FROM {numbers(ROWS)}",
        f"INSERT INTO DIAGNOSTIC_EVENT SELECT n, 3, {LONG} || ' a b' FROM {numbers(5)}",
    ),
    **{
        f"{what} {HUGE}": database("nsys", ranges(f"1; 90; '{name}'; {TID}; NULL", 1))
        for what, name in (
            ("micro-batch", f"F{HUGE}.0.0"),
            ("chunk", f"F0.{HUGE}.0"),
            ("stage", f"PP:{HUGE}F0"),
            ("step", f"iter_0_{HUGE}"),
        )
    },
}
A_PROCESS = "((281474976710656 + (500 + n) * 16777216) + 500 + n)"
NSYS_REFUSED = {"processes": database("nsys", ranges(f"n; n + 9; 'F1.0.0'; {A_PROCESS}; NULL", 5000))}

# --- Ascend, as a database and as text

ON_TASK = (
    "startNs, endNs, deviceId, connectionId, globalTaskId, globalPid, taskType, contextId, streamId, taskId, modelId"
)
FIRST = "(SELECT min(startNs) FROM TASK)"


def tasks(what: str, count: int) -> str:
    start, end, task = what.split("; ")
    return (
        f"INSERT INTO TASK ({ON_TASK}) SELECT {FIRST} + {start}, {FIRST} + {end}, 0, 4294967295, {task}, 1, 0, 0, 2, 0,"
        f" 0 FROM {numbers(count)}"
    )


def without_key(table: str) -> tuple[str, ...]:
    """The same table without its primary key, so that keys may repeat."""
    return (
        f"CREATE TABLE plain AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        f"ALTER TABLE plain RENAME TO {table}",
    )


SAME_TASK = (
    tasks("n; n + 1; 777777", 30_000),
    "INSERT INTO COMPUTE_TASK_INFO (name, globalTaskId, opType) VALUES (0, 777777, 0)",
    "INSERT INTO COMMUNICATION_TASK_INFO (name, globalTaskId, taskType, srcRank, dstRank, size, opId)"
    f" SELECT 0, 777777, 0, 0, 1, 9, 0 FROM {numbers(30_000)}",
)
ASCEND = {
    "one task id for all": database("ascend", *SAME_TASK),
    "one operator id for all": database(
        "ascend",
        *without_key("COMMUNICATION_OP"),
        "INSERT OR REPLACE INTO STRING_IDS VALUES (777777, 'hcom_batchSendRecv__123_0_1'), (777778, 'Memcpy')",
        "INSERT INTO COMMUNICATION_OP (opName, startNs, endNs, groupName, opId)"
        f" SELECT 777777, {FIRST} + n, {FIRST} + n + 1, 777777, 777777 FROM {numbers(20_000)}",
        "INSERT INTO COMMUNICATION_TASK_INFO (name, globalTaskId, taskType, srcRank, dstRank, size, opId)"
        f" SELECT 0, -1 - n, 777778, 0, 1 + n, 9, 777777 FROM {numbers(20_000)}",
    ),
    "weight gradients around tasks that compute nothing": database(
        "ascend",
        "INSERT OR REPLACE INTO STRING_IDS VALUES (777777, 'te:W1.0')",
        "DROP INDEX IF EXISTS TaskIndex",
        tasks("n; n + 1; -1 - n", ROWS),
        "INSERT INTO MSTX_EVENTS (startNs, endNs, eventType, message, domainId, connectionId)"
        f" SELECT {FIRST}, {FIRST} + 90000, 2, 777777, 0, 3999999999 FROM {numbers(5000)}",
    ),
    "a group of a million ranks": database(
        "ascend",
        "DELETE FROM META_DATA",
        """INSERT INTO META_DATA SELECT 'parallel_group_info', '{"g":{"group_name":"pp","group_rank":0,"global_ranks":['
        || group_concat(n) || ']}}' FROM """
        + numbers(1_000_000),
    ),
    "forty thousand groups": database(
        "ascend",
        "DELETE FROM META_DATA",
        """INSERT INTO META_DATA SELECT 'parallel_group_info', '{' || group_concat('"g' || n ||
        '":{"group_name":"dp","group_rank":0,"global_ranks":[0,1]}') || '}' FROM """
        + numbers(ROWS),
    ),
    "a stage beyond all ranks": database(
        "ascend",
        "DELETE FROM META_DATA",
        f"""INSERT INTO META_DATA VALUES ('parallel_group_info',
        '{{"g":{{"group_name":"pp","group_rank":{HUGE},"global_ranks":[5,6]}}}}')""",
    ),
    "a name of a megabyte for all": database(
        "ascend", f"INSERT OR REPLACE INTO STRING_IDS VALUES (0, {LONG})", tasks("n; n + 1; -1 - n", ROWS)
    ),
}


def events(event: str, count: int) -> Callable[[str], str]:
    return lambda content: content.rstrip()[:-1] + "," + ",".join([event] * count) + "]"


MINDSPORE = {
    "events of eight bytes": text("mindspore", "trace_view.json", events('{"a":1}', 25 * ROWS)),
}
MINDSPORE_REFUSED = {
    "columns without end": text("mindspore", "kernel_details.csv", lambda content: "a," * 100_000 + content),
}

# --- torch.profiler


def kineto(event: str, count: int, header: str = "") -> Callable[[str], str]:
    """With this many more events of that text, and more in the header."""

    def change(content: str) -> str:
        opened = content.index("[", content.index('"traceEvents"')) + 1
        start = content[:opened].replace("{", "{" + header, 1)
        return start + f"{event}," * count + content[opened:]

    return change


def kernel_on_stream(number: int) -> str:
    return f'{{"ph":"X","cat":"kernel","ts":{number},"dur":9,"args":{{"stream":{number}}}}}'


KINETO = {
    what: text("kineto", "one.pt.trace.json", change)
    for what, change in {
        "events of two bytes": kineto("{}", 10 * ROWS),
        "events of one field": kineto('{"ph":"X","cat":"kernel"}', 4 * ROWS),
        "annotations": kineto('{"ph":"X","cat":"user_annotation","ts":1,"dur":1,"name":"F1.0.0"}', ROWS),
        "an event nested without end": kineto('{"ph":"X","cat":"kernel","args":' + "[" * ROWS + "]" * ROWS + "}", 1),
        "lists in every event": kineto('{"ph":"X","cat":"kernel","x":' + "[" * 30 + "]" * 30 + "}", ROWS // 2),
        "a header of empty lists": kineto("{}", 1, '"x":[' + "[]," * (2 * ROWS) + "0],"),
        "a stream for each kernel": kineto(",".join(map(kernel_on_stream, range(20_000))), 1),
        f"correlation {10**18}": renumbered(r'"correlation": (\d+)', 10**18),
    }.items()
}

TWO_RANKS = {
    f"nsys: rank {HUGE}": database("nsys", ranges(f"1; 90; 'iter_{HUGE}_0'; {TID}; NULL", 1)),
    f"kineto: rank {HUGE}": text("kineto", "one.pt.trace.json", renumbered(r'"rank": (\d+)')),
}
"""Beside marks of another rank in the same file."""

# --- Paddle

EPOCH_MS = 1_760_000_000_000.0


def record(thread: int, job: str, start_ms: float) -> str:
    return (
        f"I1009 08:53:20.113000 {thread} standalone_executor.cc:200] Profiler Info: Job (0), type = {job},"
        f" micro_batch_id = 0, job_start_time = {start_ms:.6f}, job_end_time = {start_ms + 1000:.6f}\n"
    )


def records(count: int, job: str, thread: int | None, apart_ms: float) -> Callable[[Path], None]:
    """A log of records `apart_ms` from each other; {n} in `job`, and no `thread`, stand for the record's number."""
    lines = (record(n if thread is None else thread, job.format(n=n), EPOCH_MS + apart_ms * n) for n in range(count))
    return text("paddle", "workerlog.0", lambda _: "".join(lines))


PADDLE = {
    "a job type for each record": records(ROWS // 2, "job_{n}", 7, 2000),
    "a thread for each record, one after the other": records(ROWS // 50, "forward", None, 2000),
}
PADDLE_REFUSED = {"a thread for each record, all at one time": records(ROWS // 2, "forward", None, 0.001)}
BLOCKS = "rank0.blocks"
RECORDER = {
    f"{what} {HUGE}": text("recorder", BLOCKS, renumbered(pattern))
    for what, pattern in (
        ("step", r"\nF,(\d+),0"), ("micro-batch", r"\nF,5,(\d+)"), ("chunk", r"\nF,5,0,(\d+)"),
    )
} | {
    "a header for each block": text("recorder", BLOCKS, lambda content: "".join(
        f"{content.splitlines()[0]}\nF,{5 + n // 8},{n % 8},0,,,{6 * 10**12 + 2000 * n},1000,d\n" for n in range(9000)
    )),
    "malformed lines without end": text("recorder", BLOCKS, lambda content: content + "F,5,x\n" * (3 * ROWS)),
    "the file many times": text("recorder", BLOCKS, lambda content: content * 3000),
}  # fmt: skip
RECORDER_HEADERS = {
    f"{what} {HUGE}": text("recorder", BLOCKS, renumbered(pattern))
    for what, pattern in (("stage", r'"stage":(\d+)'), ("pipeline", r'"pp_size":(\d+)'), ("world", r'"world":(\d+)'))
}
RECORDER_REFUSED = {"a line without end": text("recorder", BLOCKS, lambda content: content + "x" * 20_000_000)}
RECORD = "profile_record_tmp_file_for_rank_0"
DYGRAPH = {
    "steps without end": text("paddle_dygraph", RECORD, lambda content: content * 300),
    "stage 999999": text("paddle_dygraph", RECORD, lambda content: content.replace('"tid": 1', '"tid": 999999')),
    "micro-batch 999999": text("paddle_dygraph", RECORD, lambda content: content.replace("F1_", "F999999_")),
    "chunk 9999": text("paddle_dygraph", RECORD, lambda content: content.replace("_VP1", "_VP9999")),
    "a line without end": text("paddle_dygraph", RECORD, lambda content: content + "x" * 20_000_000),
}

# --- tables


def table(**changed: pl.Expr) -> Callable[[Path], None]:
    """A span table of eight blocks, with some columns changed."""
    row = pl.int_range(8)
    columns: dict[str, pl.Expr] = {
        "rank": row % 2, "host": pl.lit("h"), "stage": row % 2, "step": row // 4, "kind": pl.lit("F"),
        "microbatch": row // 2 % 2, "chunk": pl.lit(0), "start_ns": row * 1000 + 10**18,
        "end_ns": row * 1000 + 900 + 10**18, "origin": pl.lit("device"), **changed,
    }  # fmt: skip
    return lambda folder: pl.select(**columns).write_parquet(folder / "spans.parquet")


TABLE = {
    f"{column} {HUGE}": table(**{column: pl.int_range(8) % 2 * HUGE})
    for column in ("rank", "stage", "step", "microbatch", "chunk")
}

# --- torch.profiler's Perfetto traces


def varint(number: int) -> bytes:
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def message(key: bytes, content: bytes) -> bytes:
    return key + varint(len(content)) + content


def perfetto(*packets: bytes) -> Callable[[Path], object]:
    """A sound trace and further packets."""
    content = torch_pftrace.encoded(one_block()) + b"".join(message(b"\x0a", packet) for packet in packets)
    return lambda folder: (folder / "a.pftrace").write_bytes(content)


def interned(number: int) -> bytes:
    """A packet with a name of that number."""
    return message(b"\x62", message(b"\x12", b"\x08" + varint(number) + message(b"\x12", b"x")))


ONE = [message(b"\x5a", kind + b"\x50\x01\x58\x01\x18\x01") for kind in (b"\x48\x01", b"\x48\x02")]
"""Begin and end of a slice, of the first category, name and track."""
PERFETTO = {
    "a packet of a million fields": perfetto(b"\x40\x01" * 1_000_000),
    "an event of a million fields": perfetto(message(b"\x5a", b"\x48\x01" * 1_000_000)),
    "slices that end before the next one begins": perfetto(
        *(b"\x40\x01" + event for _ in range(30_000) for event in ONE)
    ),
    "a name of a large number, and many more": perfetto(interned((1 << 22) - 1), *map(interned, range(1000, 4000))),
}

# --- tables and JSON that are put into a database first


def tables_of_nsys(rows: int) -> Callable[[Path], object]:
    """A table with this many rows of one kernel, which Parquet writes in a few bytes."""

    def make(folder: Path) -> None:
        export = Export(epoch_ns=0)
        export.range(0, 1000, 1090, "F0.0.0")
        export.kernel(0, 1100, 1150, export.call(0, 1010))
        path = export.write_folder(folder / "export", ".parquet") / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
        pl.read_parquet(path).select(pl.all().first().repeat_by(rows).explode()).write_parquet(path)

    return make


# --- packed traces


def packed(name: str, start: bytes, part: bytes, count: int) -> Callable[[Path], object]:
    """A gzipped file of this many equal parts, which hardly take space in it."""

    def make(folder: Path) -> None:
        with gzip.open(folder / name, "wb", 6) as file:
            file.write(start)
            for _ in range(0, count, 10_000):
                file.write(part * 10_000)

    return make


EVENTS = b'{"schemaVersion":1,"traceEvents":[{"ph":"X","cat":"user_annotation","ts":1,"dur":1,"name":"F1.0.0"},'
PACKED = {
    "kineto: packed events of two bytes": Size(
        packed("a.pt.trace.json.gz", EVENTS, b"{},", 10_000_000), "no GPU work in the file"
    ),
    "kineto: packed events without end": Size(
        packed("a.pt.trace.json.gz", EVENTS, b"{}," + b" " * 97, 1_000_000), "it unpacks to more than 64 MiB"
    ),
    "pftrace: packed packets that hold nothing": Size(
        packed("a.pftrace", torch_pftrace.encoded(one_block()), b"\x0a\x00", 20_000_000), "only empty packets"
    ),
}

# --- Primus


def primus(ranks: int, iterations: int, chunks: int = 1) -> Callable[[Path], object]:
    """With several chunks, blocks have no micro-batch in the files."""

    def make(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({"pp_size": ranks, "num_mbs": 1, "vp_size": chunks}))
        times = {"total": 10.0, "fwd_start": [0.0], "fwd_end": [4.0], "bwd_start": [5.0], "bwd_end": [9.0]}
        content = "{" + ",".join(f'"{n}":{json.dumps(times)}' for n in range(iterations)) + "}"
        for rank in range(ranks):
            (folder / f"pp_rank_{rank}.json").write_text(content)

    return make


PRIMUS = {
    "twenty-five thousand iterations": primus(1, 25_000),
    "a host for each of 300 ranks": primus(300, 2),
    "fifteen thousand iterations whose micro-batches are to be numbered": primus(1, 15_000, chunks=HUGE),
}

STORED_REFUSED = {
    "nsys tables: a million equal rows": Size(tables_of_nsys(1_000_000), "so small a file cannot hold 1,000,000 rows"),
}

# --- MegaScan


def megascan(count: int, fields: str) -> Callable[[Path], object]:
    """This many events, whose arguments have further `fields`; {n} counts."""
    event = (
        '{"name":"forward","ph":"X","ts":%s,"dur":5,"pid":0,"tid":0,"args":'
        '{"model_chunk":0,"pp_rank":0,"iteration":0,"microbatch":0%s}}'
    )
    events = (event % (10 * n, fields.replace("{n}", str(n))) for n in range(count))
    return lambda folder: (folder / "iter0.json").write_text("[" + ",".join(events) + "]")


def megascan_packed(blanks: int) -> Callable[[Path], object]:
    """An event, and this many blanks, which hardly take space in the file."""
    start, more = (gzip.compress(content, 1) for content in (b'[{"model_chunk":0,"pp_rank":0}', b" " * (1 << 20)))
    return lambda folder: (folder / "iter0.json").write_bytes(start + more * (blanks >> 20))


MEGASCAN = {"a field for each event": megascan(10_000, ',"k{n}":{n}')}
MEGASCAN_REFUSED = {"packed blanks": megascan_packed(600 << 20)}

# --- tables in CSV

CSV_HEADER = "rank,host,device,stage,step,kind,microbatch,chunk,start_ns,end_ns\n"
CSV_REFUSED = {
    "a line without end": lambda folder: (folder / "spans.csv").write_text(
        CSV_HEADER + "a" * 50_000_000 + ",a,0,0,0,F"
    ),
}

SIZES = {
    **{f"nsys: {what}": Size(make) for what, make in NSYS.items()},
    **{f"nsys: {what}": Size(make, "processes, more than a machine has GPUs") for what, make in NSYS_REFUSED.items()},
    **{f"ascend: {what}": Size(make) for what, make in ASCEND.items()},
    **{f"mindspore: {what}": Size(make) for what, make in MINDSPORE.items()},
    **{f"mindspore: {what}": Size(make, "kernel_details.csv") for what, make in MINDSPORE_REFUSED.items()},
    **{f"kineto: {what}": Size(make) for what, make in KINETO.items()},
    **{what: Size(make, "let each rank write a file of its own") for what, make in TWO_RANKS.items()},
    **{f"paddle: {what}": Size(make) for what, make in PADDLE.items()},
    **{f"paddle: {what}": Size(make, "threads at one time") for what, make in PADDLE_REFUSED.items()},
    **{f"paddle_dygraph: {what}": Size(make) for what, make in DYGRAPH.items()},
    **{f"recorder: {what}": Size(make) for what, make in RECORDER.items()},
    **{f"recorder: {what}": Size(make, "no header of the recorder") for what, make in RECORDER_HEADERS.items()},
    **{f"recorder: {what}": Size(make, "holds a line of more than") for what, make in RECORDER_REFUSED.items()},
    **{f"table: {what}": Size(make) for what, make in TABLE.items()},
    **{f"pftrace: {what}": Size(make) for what, make in PERFETTO.items()},
    **STORED_REFUSED,
    **PACKED,
    **{f"primus: {what}": Size(make) for what, make in PRIMUS.items()},
    **{f"megascan: {what}": Size(make) for what, make in MEGASCAN.items()},
    **{f"megascan: {what}": Size(make, "not valid JSON") for what, make in MEGASCAN_REFUSED.items()},
    **{f"csv: {what}": Size(make, "cannot be read as a span table") for what, make in CSV_REFUSED.items()},
}
