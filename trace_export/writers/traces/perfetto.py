"""A chart as a Perfetto trace (.pftrace): TrackEvent packets that the Perfetto UI shows without a click.

What the UI needs for that (v52 and later): one root track that all others lie under, explicit order among siblings,
no ClockSnapshot (it would make a second root). Field numbers as in protos/perfetto/trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trace_export.chart.chart import Chart, Part, Put, Track, arguments
from trace_export.writers.mark import ATTRIBUTES
from trace_export.writers.traces.perfetto_encoder import Encoder, field, packet
from trace_export.writers.traces.sink import opened

_EXPLICIT_ORDER = 3


@contextmanager
def writing(chart: Chart, path: Path, gzip: bool = False) -> Iterator[Put]:
    """A function that appends a part of `chart` to the trace at `path`, in memory that does not grow with its device
    tasks. Raises OSError as `open` does."""
    with opened(path, gzip) as sink:
        sink(packet(_attributes(ATTRIBUTES | chart.attributes)))
        encoder = Encoder(sink, chart.origin_ns)

        def put(part: Part) -> None:
            sink(b"".join(packet(field(60, descriptor(track))) for track in part.tracks))
            encoder.slices(part.slices, arguments(part.slices))
            encoder.instants(part.instants)
            encoder.counters(part.samples)

        yield put


def descriptor(track: Track) -> bytes:
    """A TrackDescriptor. Lanes differ in their uuid alone: the UI draws them as one track."""
    body = field(1, track.id) + field(2, track.name)
    if track.parent is not None:
        body += field(5, track.parent) + field(12, track.order)
    if track.kind == "counter":
        body += field(8, field(6, track.unit) if track.unit else b"")
    if track.description:
        body += field(14, track.description)
    return body + field(11, _EXPLICIT_ORDER)


def _attributes(facts: dict[str, str | int]) -> bytes:
    """TraceAttributes, which newer trace processors show as metadata and older ones ignore."""
    pairs = (field(1, key) + field(2 if isinstance(value, int) else 3, value) for key, value in facts.items())
    return field(126, b"".join(field(1, pair) for pair in pairs))
