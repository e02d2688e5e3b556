"""The JSON documents of `export` and `simulate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from trace_export.analysis.model_summary import ModelSummary
from trace_export.documents import VERSION, Document, MeanNs, NoteRow, Ns, Share, Time, from_attributes
from trace_export.errors import path_text

if TYPE_CHECKING:
    from trace_export.analysis.summary import Summary


class ClockStepRow(Struct):
    """How a clock that was set is corrected from `from_ns` on, as it shows it."""

    from_ns: Time
    offset_ns: Ns
    drift: float
    reference_ns: Time


class ClockRow(Struct):
    """How a host's clock was corrected: t - offset_ns - round(drift * (t - reference_ns)). `component`: its group,
    where nothing connects several groups of hosts; `reference_host`: the one whose offset is 0 in mid-window; `steps`:
    where the clock was set. docs/clocks.md explains the rest."""

    host: str
    status: Literal["fitted", "confirmed", "wall", "file", "single-host", "none"]
    evidence: str | None
    component: int | None
    reference_host: str | None
    user_offset_ns: Ns | None
    offset_ns: Ns | None
    drift: float | None
    reference_ns: Time | None
    sd_ns: MeanNs | None
    bound_ns: MeanNs | None
    unseen_step_ns: MeanNs | None
    messages: int | None
    collectives: int | None
    steps: list[ClockStepRow] | None
    label: str | None


class ExportDocument(Document, tag="export"):
    """`trace-export export --json`: the run in a few facts, and the files that were written. `blocks` counts the blocks
    of each kind; `host_times` is the share of the work whose times are those of the host, `outside`
    the largest share of a device's computing outside all blocks, null where that is little; `step_ns`, `pipeline_ns`
    (means) and `bubble` are of the whole steps where there are any; `failures` are the sources that could not be
    read."""

    hosts: list[str]
    kinds: list[str]
    ranks: int
    stages: int
    stage_origin: str
    schedule: str | None
    schedule_certainty: Literal["exact", "likely", "unknown"]
    steps: int
    whole_steps: int
    step_ns: Ns | None
    pipeline_ns: Ns | None
    blocks: dict[str, int]
    bubble: Share | None
    host_times: Share
    outside: Share | None
    clocks: list[ClockRow]
    notes: list[NoteRow]
    failures: list[str]
    files: list[str]


class SimulateDocument(Document, tag="simulate"):
    """`trace-export simulate --json`: each simulated schedule, and the files that were written."""

    schedules: list[ModelSummary]
    files: list[str]


def export_document(run: Summary, files: Sequence[Path]) -> ExportDocument:
    """The document of a run and the files written of it."""
    failures = [str(error) for error in run.failures]
    return from_attributes(ExportDocument, run, failures=failures, files=list(map(path_text, files)))


def simulate_document(models: Sequence[ModelSummary], files: Sequence[Path]) -> SimulateDocument:
    """The document of simulated schedules and the files written of them."""
    return SimulateDocument(VERSION, list(models), list(map(path_text, files)))
