"""The line of JSON that `watch --jsonl` writes for a step."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from trace_export.documents import MeanNs, Ns, Ratio, Share, Time, Version


class StepDocument(TypedDict):
    """A line of `trace-export watch --jsonl`: the figures of one step that all ranks have finished. docs/watch.md says
    what each of them is."""

    generator: Literal["trace-export"]
    document: Literal["step"]
    version: Version
    step: int | None
    start_ns: Time
    since_previous_ns: Ns | None
    pipeline_ns: Ns
    bubble: Share | None
    bubble_own: Share | None
    host_times: bool
    slowest_stage: int | None
    slowest_rank: int
    slowdown: Ratio | None
    cause: str | None
    cause_gain_ns: MeanNs | None
    worst_link: tuple[int, int] | None
    worst_link_ratio: Ratio | None
    clock_error_ns: MeanNs | None
    blocks: int
    lag_s: Annotated[float, Meta(description="seconds")]
