"""Build small profiles of the shape that torch_npu and MindSpore write: for tests of faults and of scale."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

NONE = 4294967295
FIRST_MARK = 4000000001
STREAM = 2
NAMES = {"F": "forward_step", "B": "backward_step"}
COLUMNS = {
    "TASK": "startNs endNs deviceId connectionId globalTaskId globalPid taskType contextId streamId taskId modelId",
    "COMPUTE_TASK_INFO": "name globalTaskId blockNum mixBlockNum taskType opType",
    "MSTX_EVENTS": "startNs endNs eventType rangeId category message globalTid endGlobalTid domainId connectionId",
    "COMMUNICATION_OP": "opName startNs endNs connectionId groupName opId relay retry dataType algType count opType",
    "COMMUNICATION_TASK_INFO": "name globalTaskId taskType planeId groupName notifyId srcRank dstRank size opId",
    "STEP_TIME": "id startNs endNs",
    "RANK_DEVICE_MAP": "rankId deviceId",
    "HOST_INFO": "hostUid hostName",
    "META_DATA": "name value",
}  # fmt: skip


KERNEL_DETAILS = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us)"
)


@dataclass(frozen=True)
class Block:
    """A forward or backward on the device, in unix nanoseconds."""

    kind: str
    microbatch: int
    start_ns: int
    end_ns: int


@dataclass
class Capture:
    """The profile of one rank of a pipeline. `host` is its clock domain; `kernels` the number in each block."""

    rank: int
    stage: int
    stages: int
    host: str = "node0"
    kernels: int = 3
    framework: str = "pytorch"
    strings: dict[str, int] = field(default_factory=dict)

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def folder(self, root: Path) -> Path:
        """The capture's folder, with what lies in it beside the database."""
        ending = "pt" if self.framework == "pytorch" else "ms"
        folder = root / f"{self.host}_{100 + self.rank}_{20251127120000000 + self.rank}_ascend_{ending}"
        (folder / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
        info = {
            "rank_id": self.rank,
            "end_info": {"collectionTimeEnd": 1_764_246_879_000_000_000, "MonotonicTimeEnd": 10**12},
        }
        (folder / f"profiler_info_{self.rank}.json").write_text(json.dumps(info))
        return folder

    def metadata(self) -> dict[str, object]:
        """What the training script says about its groups: here tp = dp = 1, or replicas of the same pipeline."""
        first = self.rank - self.stage
        group = {"group_name": "pp", "group_rank": self.stage, "global_ranks": [*range(first, first + self.stages)]}
        return {"parallel_group_info": {f"group_name_{first}": group}}

    def write_database(self, root: Path, steps: Sequence[Sequence[Block]]) -> None:
        """`ascend_pytorch_profiler_{rank}.db` with markers, kernels, and one operator of its own before each block."""
        path = self.folder(root) / "ASCEND_PROFILER_OUTPUT" / f"ascend_{self.framework}_profiler_{self.rank}.db"
        rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in COLUMNS}
        mark, task = FIRST_MARK, 0
        for number, blocks in enumerate(steps):
            first, last = blocks[0].start_ns, blocks[-1].end_ns
            rows["STEP_TIME"].append((number, first - 90_000, last))
            host = first - 80_000
            for block in blocks:
                text = self.string(str({"name": NAMES[block.kind]}))
                rows["MSTX_EVENTS"].append((host, host + 90, 2, NONE, NONE, text, 1, 1, self.string("default"), mark))
                rows["TASK"].append(self._task(block.start_ns, block.end_ns, mark, task, "MsTx"))
                for start, end in self._cuts(block):
                    task += 1
                    rows["TASK"].append(self._task(start, end, 0, task, "AI_CORE"))
                    kernel = self.string("MatMulV3")
                    rows["COMPUTE_TASK_INFO"].append((kernel, task, 24, 0, self.string("AI_CORE"), kernel))
                self._operator(rows, block, task)
                mark, task, host = mark + 1, task + 1, host + 100
        rows["RANK_DEVICE_MAP"].append((self.rank, self.rank % 8))
        rows["HOST_INFO"].append((self.host, self.host))
        rows["META_DATA"] += [(k, json.dumps(v)) for k, v in {"SCHEMA_VERSION": "1.2.0", **self.metadata()}.items()]
        _write(path, rows, self.strings)

    def write_text(self, root: Path, steps: Sequence[Sequence[Block]]) -> None:
        """`trace_view.json`, `kernel_details.csv` and the metadata beside them."""
        folder = self.folder(root)
        (folder / "profiler_metadata.json").write_text(json.dumps(self.metadata()))
        output = folder / "ASCEND_PROFILER_OUTPUT"
        output.joinpath("trace_view.json").write_text(json.dumps(list(self._events(steps))))
        lines = [KERNEL_DETAILS]
        for number, blocks in enumerate(steps):
            for block in blocks:
                for at, (start, end) in enumerate(self._cuts(block)):
                    core = "FlashAttentionScore" + ("Grad" if block.kind == "B" else "")
                    times = f"{_us(start)}\t,{(end - start) / 1000},0.5"
                    lines.append(f"{number},0,{NONE},{at},{STREAM},aclnn_{core},{core},AI_CORE,{times}")
                transfer = f"{number},0,N/A,N/A,N/A,hcom_receive__123_{block.microbatch}_1,hcom_receive_,COMMUNICATION"
                lines.append(f"{transfer},{_us(block.start_ns - 900)}\t,0.8,0")
        output.joinpath("kernel_details.csv").write_text("\n".join(lines) + "\n")

    def _events(self, steps: Sequence[Sequence[Block]]) -> Iterator[dict[str, object]]:
        pid = 7 << 10 | 13 << 5
        yield {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "Ascend Hardware"}}
        yield {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": 13}}
        yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": STREAM, "args": {"name": f"Stream {STREAM}"}}
        place = {"ph": "X", "pid": pid, "tid": STREAM}
        for blocks in steps:
            for block in blocks:
                args = {"Physic Stream Id": STREAM, "Task Id": block.microbatch}
                times = {"ts": _us(block.start_ns), "dur": (block.end_ns - block.start_ns) / 1000}
                yield {"name": str({"name": NAMES[block.kind]}), **place, **times, "args": args}

    def _cuts(self, block: Block) -> list[tuple[int, int]]:
        """The kernels of a block: as long as each other, with a microsecond between them."""
        each = (block.end_ns - block.start_ns) // max(self.kernels, 1)
        return [(block.start_ns + i * each, block.start_ns + (i + 1) * each - 1_000) for i in range(self.kernels)]

    def _task(self, start: int, end: int, mark: int, task: int, kind: str) -> tuple[object, ...]:
        return (start, end, self.rank % 8, mark, task, 1, self.string(kind), NONE, STREAM, task, NONE)

    def _operator(self, rows: dict[str, list[tuple[object, ...]]], block: Block, task: int) -> None:
        """The receive that feeds the block, where there is a neighbour to receive from."""
        peer = self.stage + (-1 if block.kind == "F" else 1)
        if not 0 <= peer < self.stages:
            return
        number = len(rows["COMMUNICATION_OP"])
        group = self.string(f"group_name_{self.rank - self.stage}")
        name = self.string(f"hcom_receive__000_{number}_1")
        times = (block.start_ns - 40_000, block.start_ns - 5_000)
        rows["COMMUNICATION_OP"].append((name, *times, 0, group, number, 0, 0, 11, 0, 4096, name))
        copy = self.string("Memcpy")
        rows["COMMUNICATION_TASK_INFO"].append((copy, task, copy, 0, group, NONE, self.stage, peer, 8192, number))


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _write(path: Path, rows: dict[str, list[tuple[object, ...]]], strings: dict[str, int]) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA page_size = 1024")
        db.execute("PRAGMA journal_mode = off")
        db.execute("PRAGMA synchronous = off")
        db.execute("CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT)")
        db.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", [(i, s) for s, i in strings.items()])
        for table, found in rows.items():
            columns = COLUMNS[table].split()
            if found:
                db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", found)
        db.commit()
