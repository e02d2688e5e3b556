"""Build small traces of the shape that torch.profiler writes: for the samples, and for tests.

Only what readers look at is there. `LAYOUTS` are those of Kineto, by version, and of programs that write a trace anew.
"""

from __future__ import annotations

import gzip
import json
import zipfile
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

MAIN = 4001
"""The thread id of the main thread, which is the process's."""

KINETO = {"kineto": (), "base_last": ("baseTimeNanoseconds",), "on_demand": ("distributedInfo",), "kineto_2021": ()}
"""Kineto's layouts, and the fields that each writes after the events: that of 2024-05 to 2025-03 (PyTorch 2.4 to 2.6)
the base, traces taken on demand the rank. In 2021 there were no such fields, and `OLD_CATEGORIES`."""
OLD_CATEGORIES = {
    "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cuda_runtime": "Runtime",
    "cuda_driver": "Runtime", "cpu_op": "Operator", "user_annotation": "Operator",
}  # fmt: skip
REWRITTEN: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":")}, "spaced": {}, "indented": {"indent": 2}, "indented_1": {"indent": 1},
    "sorted": {"sort_keys": True}, "events_first": {}, "without_schema": {}, "list": {}, "list_indented": {"indent": 4},
    "list_wide": {"separators": (" , ", " : ")},
}  # fmt: skip
"""Layouts of other programs, and the arguments of json.dumps that make them. A list has the events alone."""
LAYOUTS = (*KINETO, *REWRITTEN)


@dataclass
class Trace:
    """One rank's trace. Times are nanoseconds after `base_ns`; None writes no base, as old versions did."""

    rank: int | None = 0
    world: int = 1
    base_ns: int | None = 1_760_000_000_000_000_000
    host: str | None = "node0"
    pid: int = MAIN
    environment: dict[str, str] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 100

    def add(self, cat: str, name: str, start: int, end: int, tid: object, **args: Any) -> None:
        pid = 0 if cat in ("kernel", "gpu_memcpy", "gpu_memset") else self.pid
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid}
        self.events.append({**event, "ts": Micro(start), "dur": Micro(end - start), "args": args})

    def range(self, start: int, end: int, name: str, *, thread: object = MAIN, cat: str = "user_annotation") -> None:
        self.add(cat, name, start, end, thread, **{"External id": len(self.events)})

    def call(self, start: int, *, thread: object = MAIN, name: str = "cudaLaunchKernel") -> int:
        """A launch; returns its correlation id."""
        self.correlation += 1
        cat = "cuda_driver" if name.startswith("cu") and not name.startswith("cuda") else "cuda_runtime"
        self.add(cat, name, start, start + 2, thread, cbid=211, correlation=self.correlation)
        return self.correlation

    def kernel(self, start: int, end: int, call: int, *, name: str = "gemm", stream: int = 7, **args: Any) -> None:
        args = {"device": 0, "stream": stream, "correlation": call, "grid": [1, 2, 3]} | args
        self.add("kernel", name, start, end, stream, **args)

    def copy(self, start: int, end: int, call: int, *, kind: str = "HtoD") -> None:
        name = f"Memcpy {kind} (Pinned -> Device)"
        self.add("gpu_memcpy", name, start, end, 7, device=0, stream=7, correlation=call)

    def name_thread(self, thread: int, name: str) -> None:
        event = {"name": "thread_name", "ph": "M", "pid": self.pid, "tid": thread}
        self.events.append({**event, "ts": Micro(0), "dur": Micro(0), "args": {"name": name}})

    def header(self) -> dict[str, Any]:
        found: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Made-up GPU"}]}
        if self.rank is not None:
            found["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        if self.host is not None:
            found["host_name"] = self.host
        if self.base_ns is not None:
            found["baseTimeNanoseconds"] = self.base_ns
        return found | self.environment

    def text(self, layout: str = "kineto") -> str:
        if layout in REWRITTEN:
            text = json.dumps(self._document(layout), default=str, **REWRITTEN[layout])
            return text.replace(*MARKS[0]).replace(*MARKS[1])
        header, events = self.header(), self.events
        if layout == "kineto_2021":
            header = {"schemaVersion": 1}
            events = [{**event, "cat": OLD_CATEGORIES[event["cat"]]} for event in self._in_unix_time()]
        after = {"traceName": "x.json", **{k: header.pop(k) for k in KINETO[layout] if k in header}}
        before = "".join(f'  "{k}": {json.dumps(v)},\n' for k, v in header.items())
        rest = ",\n  ".join(f'"{k}": {json.dumps(v)}' for k, v in after.items())
        return f'{{\n{before}  "traceEvents": [\n{",".join(map(lines, events))}\n  ],{rest} }}'

    def _document(self, layout: str) -> Any:
        """What is written in one of the layouts `REWRITTEN`."""
        if layout.startswith("list"):
            return self._in_unix_time()
        header = self.header()
        if layout == "without_schema":
            del header["schemaVersion"]
        if layout == "events_first":
            return {"traceEvents": self.events, **header}
        return {**header, "traceEvents": self.events, "traceName": "x"}

    def _in_unix_time(self) -> list[dict[str, Any]]:
        """The events as they are written where there is no base."""
        return [{**event, "ts": Micro(event["ts"].ns + (self.base_ns or 0))} for event in self.events]

    def write(self, path: Path, layout: str = "kineto") -> Path:
        """Writes the trace, packed where the name ends with .gz or .zip."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = self.text(layout).encode()
        if path.suffix == ".zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(path.stem, content)
        else:
            path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
        return path


class Micro:
    """Nanoseconds, written as microseconds with three decimals."""

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __str__(self) -> str:
        sign = "-" if self.ns < 0 else ""
        return f"\x01{sign}{abs(self.ns) // 1000}.{abs(self.ns) % 1000:03d}\x02"


MARKS = (('"\\u0001', ""), ('\\u0002"', ""))
"""A number with its decimals goes through json as text between these."""


def lines(event: dict[str, Any]) -> str:
    """An event as Kineto prints it."""
    args = ",".join(f'"{k}": {_json(v)}' for k, v in event["args"].items())
    head = ", ".join(f'"{k}": {_json(v)}' for k, v in event.items() if k not in ("ts", "dur", "args"))
    times = ", ".join(f'"{k}": {str(event[k])[1:-1]}' for k in ("ts", "dur"))
    return f'\n  {{\n    {head},\n    {times},\n    "args": {{\n      {args}\n    }}\n  }}'


def _json(value: object) -> str:
    """What json.dumps gives, which takes five times as long for a number or a text."""
    if type(value) is int:
        return str(value)
    return encode_basestring_ascii(value) if type(value) is str else json.dumps(value)
