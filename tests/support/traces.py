"""Reading written traces back: with Perfetto's trace processor, and the packets one by one."""

from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.support.trace_processor import TraceProcessor

Event = pb.TrackEvent

_SLICES = """
    select s.id, s.ts, s.dur, s.name, s.category, s.depth,
      coalesce(extract_arg(t.source_arg_set_id, 'trace_id'), h.tid) track, coalesce(t.name, h.name) track_name
    from slice s join track t on s.track_id = t.id
      left join thread_track k on k.id = t.id left join thread h on h.utid = k.utid
    order by track, s.ts, s.dur, s.name, s.id"""
_ARGUMENTS = """
    select s.id, a.key, a.value_type, a.int_value, a.string_value, a.real_value
    from slice s join args a on s.arg_set_id = a.arg_set_id"""


def read_slices(processor: TraceProcessor) -> list[dict[str, Any]]:
    """Every slice with `args`, its arguments (those of events of ours, without their prefix)."""
    args: dict[int, dict[str, Any]] = {}
    for row in processor.query(_ARGUMENTS).iter_rows(named=True):
        prefix, _, name = row["key"].rpartition(".")
        if prefix in ("debug", "args") or row["key"] == "correlation_id":
            value = {"string": row["string_value"], "real": row["real_value"]}.get(row["value_type"], row["int_value"])
            args.setdefault(row["id"], {})[name] = bool(value) if row["value_type"] == "bool" else value
    slices = processor.query(_SLICES).to_dicts()
    return [{**s, "args": args.get(s.pop("id"), {})} for s in slices]


def decode(trace: bytes) -> list[dict[str, Any]]:
    """The track events of a Perfetto trace in file order, with interned texts put in."""
    texts: dict[tuple[str, int], str] = {}
    events = []
    for packet in pb.Trace.FromString(trace).packet:
        for table, entries in packet.interned_data.ListFields():
            for entry in entries:
                text = entry.name if hasattr(entry, "name") else entry.str
                texts[table.name, entry.iid] = text.decode() if isinstance(text, bytes) else text
        if packet.HasField("track_event"):
            assert packet.trusted_packet_sequence_id
            events.append({"ts": packet.timestamp, **_event(packet.track_event, texts)})
    return events


def _event(event: Any, texts: dict[tuple[str, int], str]) -> dict[str, Any]:
    return {
        "type": event.type,
        "track": event.track_uuid,
        "name": texts["event_names", event.name_iid] if event.name_iid else event.name,
        "category": [texts["event_categories", i] for i in event.category_iids] + list(event.categories),
        "seed": texts["correlation_id_str", event.correlation_id_str_iid]
        if event.correlation_id_str_iid
        else event.correlation_id_str,
        "flow_out": list(event.flow_ids),
        "flow_in": list(event.terminating_flow_ids),
        "value": event.double_counter_value if event.type == Event.TYPE_COUNTER else None,
        "args": dict(_argument(a, texts) for a in event.debug_annotations),
    }


def _argument(annotation: Any, texts: dict[tuple[str, int], str]) -> tuple[str, Any]:
    name = texts["debug_annotation_names", annotation.name_iid] if annotation.name_iid else annotation.name
    kind = annotation.WhichOneof("value")
    value = getattr(annotation, kind)
    return name, texts["debug_annotation_string_values", value] if kind == "string_value_iid" else value
