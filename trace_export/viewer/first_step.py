"""The format of a finished trace and the time of its first step, from the beginning of the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import polars as pl
from google.protobuf.message import DecodeError
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from trace_export.chart.critical_path import TRACK
from trace_export.chart.step_tracks import STEP_NAME, STEPS_TRACK
from trace_export.errors import SourceError
from trace_export.files import Unpacked, is_folder
from trace_export.units import thousandths

BEGINNING = 8 << 20
"""Bytes (after unpacking) in which the first step is looked for."""

Format = Literal["perfetto", "chrome", "archive"]

_FORMATS: tuple[tuple[int, bytes, Format], ...] = (
    (257, b"ustar", "archive"), (0, b"\x0a", "perfetto"), (0, b"{", "chrome"), (0, b"[", "chrome"),
    (0, b"PK\x03\x04", "archive"),
)  # fmt: skip
"""Where the bytes stand by which a format is known. A tar archive begins with the name of a file, any text."""
_NOT_TRACES = (
    (b"<", "is a page or a picture", "a web browser opens it by itself"),
    (b"\x89PNG", "is a picture", "any picture viewer opens it"),
    (b"PAR1", "is a table of spans", "read it with Polars, pandas or DuckDB"),
    (b"SQLite format 3\0", "is a profile, not a trace", "turn it into one with trace-export first"),
)


def trace_format(path: Path) -> Format:
    """Which of the formats that the Perfetto UI reads `path` is, by its first bytes, gzipped or not.

    Raises SourceError, with what to do, for anything else.
    """
    if is_folder(path):
        raise SourceError(path, "is a folder", "name the trace file in it, for instance pipeline_profile.pftrace")
    start = _beginning(path, 512)
    if not start:
        raise SourceError(path, "is empty")
    for magic, what, remedy in _NOT_TRACES:
        if start.startswith(magic):
            raise SourceError(path, what, remedy)
    for at, magic, kind in _FORMATS:
        if start.startswith(magic, at):
            return kind
    raise SourceError(path, "is not a trace", "open shows the .pftrace and .json files that trace-export writes")


def trace_in(path: Path) -> Path:
    """The only trace in a folder; a file itself, and a folder with none or several."""
    if not is_folder(path):
        return path
    found = [*path.glob("*.pftrace"), *path.glob("*.pftrace.gz")]
    return found[0] if len(found) == 1 else path


def first_step(path: Path) -> tuple[int, int] | None:
    """Start and end of the first step in nanoseconds of the trace's own clock, or None where the beginning of the
    file does not show them. Raises SourceError where the file is not a trace."""
    kind = trace_format(path)
    if kind == "archive":
        return None
    data = _beginning(path, BEGINNING)
    return _first_of_packets(data) if kind == "perfetto" else _first_of_json(data)


def track_to_pin(path: Path) -> str:
    """The name of the track of the critical path, "" where the beginning of the trace, which has the names of all
    tracks, does not have it. Raises SourceError where the file cannot be read."""
    return TRACK if TRACK.encode() in _beginning(path, BEGINNING) else ""


def _beginning(path: Path, size: int) -> bytes:
    try:
        with Unpacked(path) as file:
            data = file.read(size)
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror or error})") from error
    if file.damaged:
        raise SourceError(path, "is damaged: its packed data break off", "export it again")
    return data


def _first_of_packets(data: bytes) -> tuple[int, int] | None:
    """The earliest slice of the track that is named `Steps`; packets as in perfetto's trace_packet.proto."""
    tracks: set[int] = set()
    default_track: dict[int, int] = {}
    begins: list[tuple[int, int]] = []
    ends: list[tuple[int, int]] = []
    try:
        packets = Trace.FromString(_whole_packets(data)).packet
    except DecodeError:
        return None  # the UI will say what it makes of the file
    for packet in packets:
        if packet.track_descriptor.name == STEPS_TRACK:
            tracks.add(packet.track_descriptor.uuid)
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults.track_event_defaults
            default_track[packet.trusted_packet_sequence_id] = defaults.track_uuid
        if packet.HasField("track_event"):
            event = packet.track_event
            track = event.track_uuid or default_track.get(packet.trusted_packet_sequence_id, 0)
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                begins.append((packet.timestamp, track))
            elif event.type == TrackEvent.TYPE_SLICE_END:
                ends.append((packet.timestamp, track))
    start, track = min((b for b in begins if b[1] in tracks), default=(0, 0))
    end = min((at for at, of in ends if of == track and at > start), default=None)
    return None if end is None else (start, end)


def _whole_packets(data: bytes) -> bytes:
    """`data` up to its last whole packet: a row of (key 0x0a, length as a varint, body)."""
    at = 0
    while at < len(data) and data[at] == 0x0A:
        length = shift = 0
        next_at = at + 1
        while next_at < len(data) and shift < 35:
            byte = data[next_at]
            next_at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if next_at + length > len(data):
            break
        at = next_at + length
    return data[:at]


_NAME = STEP_NAME.format(r"\d+").encode()
_STEP = re.compile(rb'\{[^{}]*"name"\s*:\s*"' + _NAME + rb'"[^{}]*(?:\{[^{}]*\}[^{}]*)?\}')
_TIME = re.compile(rb'"(ts|dur)"\s*:\s*(\d+(?:\.\d+)?)')


def _first_of_json(data: bytes) -> tuple[int, int] | None:
    """The earliest complete event named `step N`; Chrome's ts and dur are decimal microseconds."""
    events = [{key.decode(): value.decode() for key, value in _TIME.findall(event)} for event in _STEP.findall(data)]
    times = pl.DataFrame(events, {"ts": pl.String, "dur": pl.String}).select(thousandths(pl.all())).drop_nulls()
    return min(times.select("ts", end=pl.col("ts") + pl.col("dur")).iter_rows(), default=None)
