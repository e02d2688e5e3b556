"""The encoder beside the perfetto package's own builder: the same events, packet by packet and slice by slice."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from tests.support.trace_processor import TraceProcessor
from tests.support.traces import Event, decode, read_slices
from trace_export.writers.traces import packing, perfetto_encoder

SCHEMA = {
    "track": pl.UInt64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "name": pl.String,
    "category": pl.String,
    "seed": pl.String,
    "flow_out": pl.List(pl.UInt64),
    "flow_in": pl.List(pl.UInt64),
    "microbatch": pl.Int32,
    "offset": pl.Int64,
    "bytes": pl.UInt64,
    "share": pl.Float64,
    "inferred": pl.Boolean,
    "host": pl.String,
}
ARGUMENTS = ["microbatch", "offset", "bytes", "share", "inferred", "host"]

texts = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
flows = st.lists(st.integers(1, 2**64 - 1), max_size=2)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    start = draw(st.integers(0, 2 ** draw(st.integers(0, 58))))
    return {
        "track": draw(st.sampled_from([1, 300, 2**63])),
        "start_ns": start,
        "end_ns": start + draw(st.integers(0, 2**40)),
        "name": draw(texts),
        "category": draw(st.none() | st.sampled_from(["block", "step"])),
        "seed": draw(st.none() | texts),
        "flow_out": draw(flows),
        "flow_in": draw(st.none() | flows),
        "microbatch": draw(st.none() | st.integers(0, 2**31 - 1)),
        "offset": draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
        "bytes": draw(st.none() | st.integers(0, 2**64 - 1)),
        "share": draw(st.none() | st.floats(allow_nan=False)),
        "inferred": draw(st.none() | st.booleans()),
        "host": draw(st.none() | texts),
    }


def encode(frame: pl.DataFrame, tile: int = packing.TILE_ROWS, arguments: list[str] = ARGUMENTS) -> bytes:
    """The frame encoded in tiles of this many rows, two of them to a batch."""
    out = bytearray()
    with patch.object(perfetto_encoder, "TILE_ROWS", tile), patch.object(packing, "BATCH_ROWS", 2 * tile):
        perfetto_encoder.Encoder(out.extend).slices(frame, arguments)
    return bytes(out)


def build(table: list[dict[str, Any]], tracks: dict[int, str] | None = None) -> bytes:
    """The same table through the perfetto package's builder, with nothing interned."""
    builder = TraceProtoBuilder()
    for uuid, name in (tracks or {}).items():
        descriptor = builder.add_packet().track_descriptor
        descriptor.uuid, descriptor.name = uuid, name
    for row in table:
        for kind, time in ((Event.TYPE_SLICE_BEGIN, row["start_ns"]), (Event.TYPE_SLICE_END, row["end_ns"])):
            packet = builder.add_packet()
            packet.timestamp = time
            packet.trusted_packet_sequence_id = 1
            event = packet.track_event
            event.type, event.track_uuid, event.name = kind, row["track"], row["name"]
            if kind == Event.TYPE_SLICE_BEGIN:
                describe(event, row)
    return bytes(builder.serialize())


def describe(event: Any, row: dict[str, Any]) -> None:
    event.flow_ids.extend(row.get("flow_out") or [])
    event.terminating_flow_ids.extend(row.get("flow_in") or [])
    if row.get("category") is not None:
        event.categories.append(row["category"])
    if row.get("seed") is not None:
        event.correlation_id_str = row["seed"]
    fields = {int: "int_value", float: "double_value", bool: "bool_value", str: "string_value"}
    for name in ARGUMENTS:
        if (value := row.get(name)) is not None:
            # int_value is an int64: larger ones are the same bits.
            value = value - 2**64 if type(value) is int and value >= 2**63 else value
            setattr(event.debug_annotations.add(name=name), fields[type(value)], value)


@given(st.lists(rows(), max_size=8), st.integers(1, 6))
@settings(max_examples=15, deadline=None)
def test_packets_are_those_of_the_package_builder(table: list[dict[str, Any]], tile: int) -> None:
    frame = pl.DataFrame(table, schema=SCHEMA, orient="row")
    expected = decode(build(table))
    assert decode(encode(frame)) == expected
    assert decode(encode(frame, tile)) == expected
    assert decode(encode(frame.with_columns(pl.col("name", "host").cast(pl.Categorical)), tile)) == expected


def laminar(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of `pairs` that nest or follow each other, outer ones first: what may lie on one track."""
    kept: list[tuple[int, int]] = []
    for start, end in sorted(pairs, key=lambda p: (p[0], -p[1])):
        if all(end <= e or start >= e for _, e in kept):
            kept.append((start, end))
    return kept


intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


@given(st.lists(st.tuples(intervals, st.lists(texts, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=20))
@settings(max_examples=5, deadline=None)
def test_the_trace_processor_reads_the_same_slices(
    tmp_path_factory: Any, cases: list[tuple[list[tuple[int, int]], list[str], bool]]
) -> None:
    """Nested, touching and empty slices, each case on a track of its own; shapes of records alternate on a track."""
    table = [
        {
            "track": track,
            "start_ns": start,
            "end_ns": end,
            "name": names[place % len(names)],
            "microbatch": place if place % 2 or not mixed else None,
            "host": names[-1] if place % 3 else None,
        }
        for track, (pairs, names, mixed) in enumerate(cases, 1)
        for place, (start, end) in enumerate(laminar(pairs))
    ]
    tracks = {number: f"case {number}" for number in range(1, len(cases) + 1)}
    columns = ["track", "start_ns", "end_ns", "name", "microbatch", "host"]
    frame = pl.DataFrame(table, schema={name: SCHEMA[name] for name in columns}, orient="row")
    descriptors = [
        perfetto_encoder.field(1, number) + perfetto_encoder.field(2, name) for number, name in tracks.items()
    ]
    folder: Path = tmp_path_factory.mktemp("traces")
    ours, theirs = folder / "ours.pftrace", folder / "theirs.pftrace"
    ours.write_bytes(
        b"".join(perfetto_encoder.packet(perfetto_encoder.field(60, d)) for d in descriptors)
        + encode(frame, 7, ["microbatch", "host"])
    )
    theirs.write_bytes(build(table, tracks))
    with TraceProcessor(ours) as left, TraceProcessor(theirs) as right:
        assert len(left.problems()) == 0
        result = read_slices(left)
        assert result == read_slices(right)
    exact = sorted((r["track"], r["start_ns"], r["end_ns"] - r["start_ns"], r["name"]) for r in table)
    assert sorted((s["track"], s["ts"], s["dur"], s["name"]) for s in result) == exact


def test_instants_and_counters() -> None:
    out = bytearray()
    encoder = perfetto_encoder.Encoder(out.extend)
    encoder.instants(pl.DataFrame({"track": [3], "ts_ns": [7], "name": ["end"], "rank": [5]}), ["rank"])
    encoder.counters(pl.DataFrame({"track": [4, 4], "ts_ns": [0, 2**40], "value": [-1.5, 2]}))
    instant, *samples = decode(bytes(out))
    assert (instant["type"], instant["ts"], instant["name"], instant["args"]) == (3, 7, "end", {"rank": 5})
    assert [(s["type"], s["track"], s["ts"], s["value"]) for s in samples] == [(4, 4, 0, -1.5), (4, 4, 2**40, 2.0)]


def test_not_a_number_is_left_out() -> None:
    frame = pl.DataFrame({"track": [1], "start_ns": [0], "end_ns": [1], "name": ["F"], "share": [math.nan]})
    assert decode(encode(frame, arguments=["share"]))[0]["args"] == {}


def test_small_fields_are_the_bytes_of_the_specification() -> None:
    assert perfetto_encoder.varint(300) == b"\xac\x02"
    assert perfetto_encoder.varint(1, 3) == b"\x81\x80\x00"
    assert perfetto_encoder.varint(-1) == b"\xff" * 9 + b"\x01"
    assert perfetto_encoder.field(2, "testing") == b"\x12\x07testing"
    assert perfetto_encoder.field(1, 0.5) == b"\x09\x00\x00\x00\x00\x00\x00\xe0\x3f"


@pytest.mark.parametrize("bits", [0, 24, 56])
def test_packets_of_any_size(bits: int) -> None:
    """The lengths of packets, which are padded, take one byte below 128 and two above."""
    for count in range(40):
        values = {f"a{i}": i for i in range(count)}
        frame = pl.DataFrame([{"track": 1, "start_ns": 1 << bits, "end_ns": 1 << bits, "name": "F0", **values}])
        begin, end = decode(encode(frame, arguments=list(values)))
        assert begin["args"] == values
        assert (begin["ts"], end["ts"], end["name"]) == (1 << bits, 1 << bits, "F0")


def test_records_are_compact() -> None:
    """A slice with three arguments takes at most 70 bytes, names, keys and lengths included."""
    rows_n = 20_000
    frame = pl.DataFrame({"track": pl.Series([5] * rows_n, dtype=pl.UInt64), "name": ["F1"] * rows_n}).with_columns(
        start_ns=pl.int_range(pl.len()) * 1000,
        microbatch=pl.int_range(pl.len()) % 100,
        rank=pl.int_range(pl.len()) % 1000,
        bytes=pl.int_range(pl.len()) * 100_000,
    )
    frame = frame.with_columns(end_ns=pl.col("start_ns") + 900)
    assert len(encode(frame, arguments=["microbatch", "rank", "bytes"])) <= 70 * rows_n
