"""The JSON document of an inspection."""

from __future__ import annotations

from typing import Literal, TypedDict

from msgspec import Struct

from trace_export.documents import Document, NoteRow, Ns, Time


class Facts(TypedDict, total=False):
    """The run in numbers; without keys where there is no profile. `stages` counts those that were read, `all_stages`
    those of the pipeline. `missing_ranks` and `missing_stages` are ranges such as "5,40-47"; `beginnings` counts the
    large sources whose beginning alone was read; `inferred` says which of stages, blocks and labels were not recorded;
    `deeper`: the ranks are a part of a pipeline of unknown depth; `forward_only`: no rank runs a backward."""

    schedule: str | None
    certainty: Literal["exact", "likely", "unknown"]
    deeper: bool
    forward_only: bool
    ranks: int
    stages: int
    all_stages: int
    missing_ranks: str
    missing_stages: str
    steps: int
    whole_steps: int
    step_ns: Ns | None
    microbatches: int | None
    hosts: int
    messages_between_hosts: int
    collectives_between_hosts: int
    dependencies_between_hosts: int
    beginnings: int
    about_steps: int | None
    bytes: int
    inferred: list[str]


class RunRow(Struct):
    """A run of the job that the sources hold: its number (1 is the oldest), when it began by its earliest clock, how
    many ranks, windows and steps it has, which ranks are missing (ranges such as "1,4-7"), and whether the rest of the
    document is about it. `steps` is null where only the beginning of the sources was read and steps are not recorded.
    """

    run: int
    start_ns: Time | None
    ranks: int
    windows: int
    steps: int | None
    missing_ranks: str
    read: bool


class SourceRow(Struct):
    """A profile that was found."""

    kind: str
    path: str
    machine: int | None
    rank: int | None
    rank_origin: str | None


class RankRow(Struct):
    """A rank, with counts of its blocks by kind, its side of transfers and collectives, and the length of its recording
    in seconds. `first_ns` is on the clock of its host. Where only the `beginning` was read, counts are of that, and
    `about_steps` estimates the steps of the whole."""

    rank: int
    rank_origin: str | None
    stage: int | None
    stage_origin: str | None
    host: str
    device: int | None
    steps: int | None
    blocks: int | None
    F: int | None
    B: int | None
    W: int | None
    FB: int | None
    OPT: int | None
    microbatches: int | None
    step_ns: Ns | None
    transfers: int
    collectives: int
    origin: str | None
    device_tasks: bool
    first_ns: Time | None
    seconds: float | None
    beginning: bool | None
    about_steps: int | None


class InspectDocument(Document, tag="inspect"):
    """`trace-export inspect --json`: whether what lies in a folder can be drawn, and what each source holds."""

    verdict: str
    facts: Facts
    runs: list[RunRow]
    sources: list[SourceRow]
    ranks: list[RankRow]
    notes: list[NoteRow]
    failures: list[str]
