"""The JSON text itself: legal, exact, and free of the traps that viewers have."""

import json
import re
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.charts import write_trace
from tests.support.profiles import ORIGIN, detailed, profile, span, two_stages
from tests.support.texts import CHARACTERS
from tests.support.trace_processor import TraceProcessor
from tests.writers.traces.test_writers import full_chart
from trace_export.chart.layout import ChartOptions, lay_out
from trace_export.writers.traces import chrome, json_text

VALUES = {
    "count": st.none() | st.integers(0, 2**63 - 1),
    "signed": st.none() | st.integers(-(2**63), 2**63 - 1),
    "large": st.integers(0, 2**64 - 1),
    "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "inferred": st.none() | st.booleans(),
    "text": st.none() | st.text(CHARACTERS, max_size=70),
    "time": st.integers(0, 2**62),
}
TYPES = {
    "count": pl.Int64,
    "signed": pl.Int64,
    "large": pl.UInt64,
    "share": pl.Float64,
    "inferred": pl.Boolean,
    "text": pl.String,
    "time": pl.Int64,
}


@given(st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_records_are_the_json_of_their_rows(rows: list[dict[str, Any]]) -> None:
    frame = pl.DataFrame(rows, schema=TYPES, orient="row")
    head = ['{"time":', *json_text.micros(frame["time"]), ',"args":{']
    keys = [name for name in TYPES if name != "time"]
    values = [(f'"{key}":', json_text.value(frame[key])) for key in keys]
    text = json_text.records(head, values, "}}\n").decode()
    result = [json.loads(line, parse_float=str) for line in text.rstrip("\n").split("\n")]
    for row, line in zip(rows, result, strict=True):
        whole, thousandths = divmod(row["time"], 1000)
        assert line["time"] == f"{whole}.{thousandths:03}"
        if "share" in line["args"]:
            line["args"]["share"] = float(line["args"]["share"])
        assert line["args"] == {k: row[k] for k in keys if row[k] is not None}


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = orjson.loads(path.read_bytes())
    return loaded


def test_ids_times_and_names(tmp_path: Path) -> None:
    write_trace(chrome, full_chart(tmp_path), tmp_path / "a.json")
    events = load(tmp_path / "a.json")["traceEvents"]
    assert {e["pid"] for e in events} == {1}
    assert all(e["tid"] > 1 for e in events if "tid" in e)
    assert min(e["ts"] for e in events if "ts" in e) == 0
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    blocks = [f"stage {stage} · rank {rank}" for stage, rank in ((0, 0), (0, 1), (1, 2), (1, 3))]
    assert list(names.values())[:5] == ["Steps", *blocks]
    assert set(names) == {e["tid"] for e in events if e["ph"] == "X"}
    assert {"rank 0 · stream 13", "rank 0 · stream 13 (2)", "rank 0 · stream 7 · compute"} <= set(names.values())
    assert names == dict(sorted(names.items()))
    ends = [e for e in events if e["ph"] == "f"]
    assert len(ends) == 8 == len([e for e in events if e["ph"] == "s"])
    assert all(e["bp"] == "e" for e in ends)


def test_the_origin_is_exact_in_the_metadata(tmp_path: Path) -> None:
    write_trace(chrome, lay_out(two_stages(), detailed(two_stages())), tmp_path / "a.json")
    loaded = load(tmp_path / "a.json")
    assert loaded["metadata"]["origin_unix_ns"] == ORIGIN == loaded["otherData"]["origin_unix_ns"]
    assert "p2p" in loaded["metadata"]["clock node-a"]


def test_text_is_raw_utf8_and_times_have_three_decimals(tmp_path: Path) -> None:
    write_trace(
        chrome, lay_out(profile([span(0, None, None, 0, 1_234_567, marker='损失 "x"')], {0: 0})), tmp_path / "a.json"
    )
    text = (tmp_path / "a.json").read_text()
    assert '"损失 \\"x\\""' in text
    assert re.search(r'"dur": *1234\.567,', text)


def test_a_backslash_at_the_end_keeps_the_file_readable(tmp_path: Path) -> None:
    """The trace processor v52 takes the quote after it for an escaped one; the text is legal JSON all the same."""
    texts = ["C:\\logs\\", "\\", "\\\\", '\\"', '"\\']
    blocks = [span(0, "F", n, 10 * n, 10 * n + 5 + n, marker=text) for n, text in enumerate(texts)]
    write_trace(chrome, lay_out(profile(blocks, {0: 0})), tmp_path / "a.json")
    read = [e for e in load(tmp_path / "a.json")["traceEvents"] if e["name"].startswith("F")]
    assert [block["args"]["marker"] for block in read] == texts
    with TraceProcessor(tmp_path / "a.json") as processor:
        assert processor.problems().is_empty()
        lengths = processor.query("select dur from slice where name glob 'F*' order by ts")
    assert lengths["dur"].to_list() == [5, 6, 7, 8, 9]


def test_numbers_in_track_names_are_as_wide_as_the_widest(tmp_path: Path) -> None:
    blocks = [span(rank, "F", 0, rank, rank + 1) for rank in range(12)]
    write_trace(chrome, lay_out(profile(blocks, {rank: rank for rank in range(12)})), tmp_path / "a.json")
    events = load(tmp_path / "a.json")["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == sorted(names)
    assert names[3] == "stage 02 · rank 02"


@pytest.mark.parametrize("length", [5_000, 3_000_000])
def test_one_long_text_does_not_widen_the_others(tmp_path: Path, length: int) -> None:
    blocks = [span(0, "F", i, i, i + 1, marker="x" * length if i == 50 else "short") for i in range(100)]
    write_trace(chrome, lay_out(profile(blocks, {0: 0}), ChartOptions()), tmp_path / "a.json")
    events = load(tmp_path / "a.json")["traceEvents"]
    assert (tmp_path / "a.json").stat().st_size < 2 * length + 100_000
    assert sum(len(e.get("args", {}).get("marker", "")) for e in events) == length + 99 * 5
