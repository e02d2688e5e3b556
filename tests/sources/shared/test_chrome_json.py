"""Traces that are no JSON as they were written: of what readers look at nothing is lost."""

import json
import math
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import polars as pl
import pytest

from samples.generators.kineto_trace import Trace
from tests.support.rows import crossed
from tests.support.torch_traces import BASE, loaded, notes, times
from trace_export.sources.find import find
from trace_export.sources.kineto.reader import read_tasks
from trace_export.sources.shared import chrome_json
from trace_export.sources.source import Source, TaskRequest

PATH = r"C:\Users\me\x.json"


def trace() -> Trace:
    """Blocks with operators, kernels and a copy."""
    made = Trace(rank=3, world=8)
    for i in range(4):
        at = 100_000 * i
        made.range(at + 1_000, at + 9_000, f"F{i}.0.0")
        for j in range(5):
            made.range(at + 1_000 + 100 * j, at + 1_090 + 100 * j, "aten::mm", cat="cpu_op")
            call = made.call(at + 2_000 + 100 * j)
            made.kernel(at + 20_000 + 1_000 * j, at + 20_900 + 1_000 * j, call, name=f"void gemm<{j}>(int*)")
        made.copy(at + 30_000, at + 31_007, made.call(at + 8_000, name="cudaMemcpyAsync"))
    return made


def with_argument(text: str) -> str:
    """Kernels and copies with another argument."""
    return re.sub(r'("args": {\s*"device": 0,)', rf"\1{text},", trace().text())


def re_dumped(**options: Any) -> str:
    document = json.loads(trace().text())
    for event in document["traceEvents"]:
        event["args"] |= {"a": math.nan, "b": [math.inf, -math.inf]}
    return json.dumps(document, **options)


def named(operator: str) -> str:
    return trace().text().replace("aten::mm", operator)


def kernels(name: str) -> str:
    return trace().text().replace("void gemm<1>", name)


def device_tasks(path: Path) -> list[tuple[Any, ...]]:
    (file,) = read_tasks(TaskRequest(Source("kineto", path, "machine0"), "kernels", {0: 0}, None, path.parent))
    return pl.read_ipc(file.path).cast({"name": pl.String}).rows()


SAME = {
    "bandwidth of a copy without duration": with_argument('"memory bandwidth (GB/s)": inf'),
    "no multiprocessors": with_argument('"blocks per SM": -nan,"warps per SM": nan(ind)'),
    "not available": with_argument('"queued": N/A'),
    "written by Python": re_dumped(),
    "written compactly by Python": re_dumped(separators=(",", ":")),
    "indented by Python": re_dumped(indent=1),
    "quotation marks in an operator": named('_x = L("_i", "IMPL")\n(1): <module>'),
    "an odd one, and a brace": named('{"device": "cpu(12): run'),
    "backslashes in an operator": named(r"torch\cuda\__init__.py(219): _lazy_init"),
    "a path of Windows": trace().text().replace("x.json", PATH),
    "a path of Windows beside the base": trace().text("base_last").replace("x.json", PATH),
    "quotation marks before the base": trace().text("base_last").replace("aten::mm", '"device": "cpu(12): run'),
    "a comma after the last event": trace().text().replace("\n  ],", ",\n  ],"),
    "numbers of the header as text": re.sub(r'("(?:baseTimeNanoseconds|rank)": )(\d+)', r'\1"\2"', trace().text()),
    "streams as fractions": trace().text().replace('"stream": 7,', '"stream": 7.0,'),
    "streams of 2021": trace().text().replace('"tid": 7,', '"tid": "stream 7",'),
}
RENAMED = {'g"x"1': kernels('g"x"1'), "g\n1": kernels("g\n1"), 'a\\q"1"': kernels('a\\q"1"'), "g\t1": kernels("g\t1")}


@pytest.fixture(scope="module")
def as_json(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The times and the device tasks of the trace as Kineto writes it."""
    path = trace().write(tmp_path_factory.mktemp("original") / "t.json")
    return times(loaded(path)), device_tasks(path)


@pytest.mark.parametrize(("what", "size"), crossed(SAME, [1 << 20, 3_000]))
def test_the_tables_are_those_of_json(
    tmp_path: Path, what: str, size: int, as_json: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    written = folder / "t.json"
    written.write_text(SAME[what])
    assert [source.path for source in find(folder).sources] == [written]
    with patch.object(chrome_json, "READ_BYTES", size):
        profile = loaded(written)
        assert (times(profile), device_tasks(written)) == as_json
    assert profile.ranks["rank"].to_list() == [3]
    assert notes(profile) == {}


@pytest.mark.parametrize("name", RENAMED)
def test_names_that_are_not_escaped_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(RENAMED[name])
    result = [task for task in device_tasks(path) if task[1].startswith(name)]
    assert [task[3] - BASE for task in result] == [21_000, 121_000, 221_000, 321_000]
    assert notes(loaded(path)) == {}


def test_what_cannot_be_repaired_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(with_argument('"queued": ?'))
    assert notes(loaded(path, host_ranges=True))["events-malformed"] == 24


def test_a_time_that_is_not_utf_8_is_no_number() -> None:
    events = [(b'"\xe6"', b""), (b"1.5", b"2")]
    table = chrome_json.times([chrome_json.Event(ts=msgspec.Raw(ts), dur=msgspec.Raw(dur)) for ts, dur in events])
    assert table.rows() == [(None, None), (1500, 3500)]
