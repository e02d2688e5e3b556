"""Why an Nsight Systems export cannot be drawn, as the user is told it."""

from __future__ import annotations

from pathlib import Path

from trace_export.errors import SourceError
from trace_export.sources.ranges import notes


def no_ranges(path: Path) -> SourceError:
    return SourceError(
        path,
        "no NVTX ranges in the file: it was captured without NVTX, or the program has no ranges",
        "capture with nsys profile -t cuda,nvtx and a runtime that names its passes",
    )


def no_names(path: Path, frequent: list[str]) -> SourceError:
    """For a capture whose runtime does not name its passes."""
    return notes.no_names(
        path,
        "NVTX range",
        frequent,
        "mark the passes with trace-export run, wrap them in torch.cuda.nvtx.range(f'F{microbatch}.{chunk}.0'), or "
        "name your own with --marker 'REGEX=>F'",
    )


def no_calls(path: Path) -> SourceError:
    return SourceError(
        path,
        "no CUDA calls in the file, so that nothing ties its GPU work to the ranges",
        f"capture with -t cuda,nvtx, or {notes.HOST}",
    )


def no_kernels(path: Path) -> SourceError:
    return SourceError(
        path,
        "no GPU work in the file: it was captured without CUDA, or the profiler is too old for the driver",
        f"capture with -t cuda,nvtx and a current nsys, or {notes.HOST}",
    )
