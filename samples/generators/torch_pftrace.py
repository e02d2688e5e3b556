"""Write the traces of `kineto_trace` as torch.profiler's Perfetto traces, by the schema of the perfetto package.

The order of packets is that of torch/csrc/profiler/cupti in pytorch/pytorch (2.14): the clocks, the tracks, all
interned names, for each kind of slices its begins and then its ends, and the device tasks.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as perfetto

from samples.generators.kineto_trace import Trace

STAGES = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "gpu_user_annotation": "Annotation"}
GROUPS = (("cpu_op", "user_annotation"), ("cuda_runtime",), ("cuda_driver",))
KEYS = {"stream": "stream id", "device": "device id"}
STREAMS = 100
"""Numbers of streams come after those of stages."""


def encoded(trace: Trace) -> bytes:
    """The trace as a Perfetto trace, not packed. It does not say the rank and the host."""
    return Writer(trace).written().SerializeToString()


def write(trace: Trace, path: Path, *, packed: bool = True) -> Path:
    """Writes the trace gzipped, as PyTorch does under any name, or plain."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(encoded(trace), mtime=0) if packed else encoded(trace))
    return path


class Writer:
    """Collects the packets of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.out = trace, perfetto.Trace()
        self.base = trace.base_ns or 0
        self.names: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.tracks: dict[object, int] = {}

    def written(self) -> Any:
        clocks = self.packet(self.base).clock_snapshot
        for clock in (6, 1):
            clocks.clocks.add(clock_id=clock, timestamp=self.base)
        events = [e for e in self.trace.events if "cat" in e]
        groups = [[e for e in events if e["cat"] in cats] for cats in GROUPS]
        tasks = [e for cat in STAGES for e in events if e["cat"] == cat]
        self._add_tracks(e["tid"] for group in groups for e in group)
        self._add_names(groups, tasks)
        for group in groups:
            self._add_slices(group)
        for number, event in enumerate(tasks, 1):
            self._add_task(number, event)
        return self.out

    def packet(self, ns: int | None = None, flags: int = 0) -> Any:
        packet = self.out.packet.add(trusted_packet_sequence_id=1)
        if ns is not None:
            packet.timestamp = ns
        if flags:
            packet.sequence_flags = flags
        return packet

    def _add_tracks(self, threads: Iterable[object]) -> None:
        names = {e["tid"]: e["args"]["name"] for e in self.trace.events if e["name"] == "thread_name"}
        process = self.out.packet.add().track_descriptor
        process.uuid, process.process.pid, process.process.process_name = 1, 1, "python"
        for uuid, tid in enumerate(dict.fromkeys(threads), 2):
            track = self.out.packet.add().track_descriptor
            track.uuid, track.parent_uuid = uuid, 1
            track.thread.pid, track.thread.tid = 1, tid if isinstance(tid, int) else 90
            track.thread.thread_name = names.get(tid, f"thread {tid}")
            self.tracks[tid] = uuid

    def _add_names(self, groups: list[list[dict[str, Any]]], tasks: list[dict[str, Any]]) -> None:
        interned = self.packet(flags=1).interned_data
        for event in [e for group in groups for e in group] + tasks:
            if event["name"] not in self.names:
                self.names[event["name"]] = len(self.names) + 1
                interned.event_names.add(iid=self.names[event["name"]], name=event["name"])
        for cat in dict.fromkeys(e["cat"] for group in groups for e in group):
            self.categories[cat] = len(self.categories) + 1
            interned.event_categories.add(iid=self.categories[cat], name=cat)
        for iid, name in enumerate(STAGES.values(), 1):
            interned.gpu_specifications.add(iid=iid, name=name)
        for stream in sorted({self._stream(e) for e in tasks}):
            interned.gpu_specifications.add(iid=STREAMS + stream, name=f"[{stream:05d}] stream {stream}")

    def _add_slices(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            begin = self.packet(self.base + event["ts"].ns, flags=2).track_event
            begin.type, begin.track_uuid = perfetto.TrackEvent.TYPE_SLICE_BEGIN, self.tracks[event["tid"]]
            begin.name_iid = self.names[event["name"]]
            begin.category_iids.append(self.categories[event["cat"]])
            for key, value in event["args"].items():
                _annotate(begin.debug_annotations.add(name=key), value)
        for event in events:
            end = self.packet(self.base + event["ts"].ns + event["dur"].ns).track_event
            end.type, end.track_uuid = perfetto.TrackEvent.TYPE_SLICE_END, self.tracks[event["tid"]]

    def _add_task(self, number: int, event: dict[str, Any]) -> None:
        task = self.packet(self.base + event["ts"].ns, flags=2).gpu_render_stage_event
        task.event_id, task.duration = number, event["dur"].ns
        task.gpu_id = int(event["args"].get("device", 0))
        task.hw_queue_iid = STREAMS + self._stream(event)
        task.stage_iid = list(STAGES).index(event["cat"]) + 1
        task.context = 1
        task.name_iid = self.names[event["name"]]
        for key, value in event["args"].items():
            task.extra_data.add(name=KEYS.get(key, key), value=str(value))

    @staticmethod
    def _stream(event: dict[str, Any]) -> int:
        return int(event["args"].get("stream", event["tid"]))


def _annotate(annotation: Any, value: Any) -> None:
    if isinstance(value, list):
        for each in value:
            _annotate(annotation.array_values.add(), each)
    elif isinstance(value, dict):
        for key, each in value.items():
            _annotate(annotation.dict_entries.add(name=key), each)
    elif isinstance(value, int):
        annotation.int_value = value
    else:
        annotation.string_value = str(value)
