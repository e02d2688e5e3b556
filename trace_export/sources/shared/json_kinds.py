"""What a JSON file is that no reader takes as it is: whose it is and what to do with it, by its first bytes."""

from __future__ import annotations

import re
from pathlib import Path

from trace_export.files import GENERATOR
from trace_export.sources.not_here import UNPACKING, packed

_CHART = re.compile(rb'(?:"generator"\s*:\s*"|\tgenerator\x1a.)' + re.escape(GENERATOR.encode()))
"""In JSON, and in the attributes of a Perfetto trace, where a tab is the length of the key."""
_EXECUTION_TRACE = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"[\d.]+-chakra')
"""What torch.profiler.ExecutionTraceObserver writes."""
_PADDLE_TRACE = re.compile(rb'"SpanNumber"\s*:\s*"\d+"')
"""At the beginning of what paddle.profiler writes (paddle/fluid/platform/profiler/chrometracing_logger.cc), which has
other categories and names of arguments."""
_ASCEND_MERGED = re.compile(rb'"Ascend Hardware_\d')
"""The processes of a file into which msprof-analyze merged those of several ranks."""
_ASCEND = re.compile(rb'"Ascend Hardware|"ts"\s*:\s*"\d+(?:\.\d+)?"')
"""The device's process, or a time as text, which no other profiler writes."""
_PLAIN_ONLY = (
    ("megascan", re.compile(rb'^\s*\[(?=.*"model_chunk")(?=.*"pp_rank")', re.DOTALL), ""),
    ("primus", re.compile(rb'^\s*\{\s*"\d+"\s*:\s*\{.*"(?:fwd|bwd)_(?:start|end)"', re.DOTALL),
     "a file of Primus without config.json beside it, or not called pp_rank_N.json: take both from the same run"),
    ("rocpd", re.compile(rb'^\s*\{\s*"rocprofiler-sdk-tool"'),
     "JSON of rocprofv3, which is not read: record with rocprofv3 --output-format rocpd"),
)  # fmt: skip
"""JSON that is read where it is not packed: the kind of its format, how it begins, and what is wrong where that is not
the packing."""


def refused(start: bytes) -> str:
    """Why a file that may look like a trace of torch.profiler is none, to complete "PATH is …"; "" where it may be."""
    if _CHART.search(start):
        return f"a chart that {GENERATOR} wrote"
    if _EXECUTION_TRACE.search(start, 0, 200):
        return "an execution trace of PyTorch, which has no times; draw the trace of the profiler beside it"
    if _PADDLE_TRACE.search(start, 0, 400):
        return "a trace of paddle.profiler, which is not read: give the worker logs, or record with Nsight Systems"
    return ""


def of_others(path: Path, start: bytes) -> tuple[str, str] | None:
    """The kind of format that a file belongs to which is no trace of torch.profiler, and what it is, to complete
    "PATH is …"; None where it is nobody's."""
    if _ASCEND_MERGED.search(start):
        what = (
            "a merge of the traces of several Ascend ranks: give the folders *_ascend_pt or *_ascend_ms they are from"
        )
        return "ascend", what
    for kind, pattern, remedy in _PLAIN_ONLY:
        if pattern.search(start) and (path.suffix in UNPACKING or remedy):
            return kind, packed(path.name) if path.suffix in UNPACKING else remedy
    if _ASCEND.search(start):
        place = "rank_N_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json, N its rank"
        what = "a trace of an Ascend rank outside its folder: give the folder *_ascend_pt or *_ascend_ms it is from"
        return "ascend", f"{what}, or put it into {place}"
    return None
