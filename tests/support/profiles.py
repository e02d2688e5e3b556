"""Small profiles made by hand for the tests of chart and writers."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from trace_export.analysis.clock_words import clock_texts
from trace_export.chart.layout import ChartOptions
from trace_export.clocks.apply import task_batches
from trace_export.model import (
    CLOCKS,
    COLLECTIVES,
    COUNTERS,
    HOSTS,
    KERNELS,
    MESSAGES,
    P2P,
    RANKS,
    SPANS,
    WIRE_NS,
    Declared,
    KernelFile,
    Profile,
    Recognition,
    Schema,
    conform,
)
from trace_export.pipeline.interpret import conclude, with_ids
from trace_export.pipeline.message_passes import link
from trace_export.pipeline.passes import passes_of
from trace_export.pipeline.replicas import number_replicas
from trace_export.pipeline.schedule_match import recognise

ORIGIN = 1_763_682_000_123_456_789
"""A real time: the tests must not live in the small numbers where any float is exact."""


def table(rows: list[dict[str, Any]], schema: Schema) -> pl.DataFrame:
    names = {name for row in rows for name in row}
    return conform(pl.DataFrame(rows, schema={n: schema[n] for n in schema if n in names}, orient="row"), schema)


def span(rank: int, kind: str | None, microbatch: int | None, start: int, end: int, **more: Any) -> dict[str, Any]:
    """A row of spans; times in ns after `ORIGIN`."""
    row = {"rank": rank, "run": 0, "step": 0, "kind": kind, "microbatch": microbatch, "origin": "device"}
    return {**row, "start_ns": ORIGIN + start, "end_ns": ORIGIN + end, **more}


def profile(spans: list[dict[str, Any]], stages: dict[int, int | None], **more: Any) -> Profile:
    """`stages`: rank → stage. All ranks are on one host."""
    ranks = [
        {"rank": r, "host": "node-a", "device": r, "stage": s, "rank_origin": "recorded", "stage_origin": "inferred"}
        for r, s in stages.items()
    ]
    hosts = table([{"host": "node-a", "machine": 0, "label": "node-a"}], HOSTS)
    facts = {"declared": Declared(schedule="1F1B"), **more}
    return placed(Profile(hosts=hosts, ranks=table(ranks, RANKS), spans=table(spans, SPANS), **facts)).validate()


def placed(made: Profile) -> Profile:
    """`made` with ids of its spans and replicas of its ranks, as `stages.resolve` leaves them."""
    return with_ids(replace(made, ranks=number_replicas(made.ranks)))


def recognised(made: Profile) -> Recognition:
    """The schedule of the profile's fullest step, beside what it declares."""
    return recognise(passes_of(made), made.declared)


def concluded(made: Profile) -> Profile:
    """`made` with the interpretation of its blocks, which have all their labels."""
    return conclude(placed(made))


def with_messages(made: Profile, messages: pl.DataFrame) -> Profile:
    """`made`, which is interpreted, with these messages and the passes that each lies between."""
    return link(replace(made, messages=conform(conform(messages, MESSAGES).with_columns(wire_ns=WIRE_NS), MESSAGES)))


def two_stages(**more: Any) -> Profile:
    """One step of two micro-batches on two stages with two ranks each: ranks 0, 1 and 2, 3."""
    orders = (
        [("F", 0, 0, 100), ("F", 1, 100, 200), ("B", 0, 400, 600), ("B", 1, 700, 900), ("OPT", None, 900, 1000)],
        [("F", 0, 110, 210), ("B", 0, 210, 390), ("F", 1, 390, 490), ("B", 1, 490, 690), ("OPT", None, 900, 1000)],
    )
    blocks = [
        span(rank, kind, number, start + 3 * (rank % 2), end + 3 * (rank % 2), chunk=0, marker=f"{kind}-{number}")
        for rank in range(4)
        for kind, number, start, end in orders[rank // 2]
    ]
    clock = {
        "host": "node-a",
        "status": "fitted",
        "evidence": "p2p",
        "offset_ns": 1500,
        "drift": 0.0,
        "reference_ns": ORIGIN,
    }
    clocks = [{**clock, "sd_ns": 800.0, "bound_ns": 2400.0}]
    return profile(blocks, {0: 0, 1: 0, 2: 1, 3: 1}, clocks=table(clocks, CLOCKS), **more)


def forward_edges(spans: pl.DataFrame) -> pl.DataFrame:
    """The arrows of `two_stages`, in the form of block edges: F from ranks 0, 1 to 2, 3 and B back."""
    row = {(r["rank"], r["kind"], r["microbatch"]): r["id"] for r in spans.iter_rows(named=True)}
    pairs = [
        (row[s, kind, m], row[d, kind, m])
        for m in (0, 1)
        for kind, s, d in (("F", 0, 2), ("F", 1, 3), ("B", 2, 0), ("B", 3, 1))
    ]
    return pl.DataFrame(pairs, schema={"src": pl.UInt32, "dst": pl.UInt32}, orient="row")


def with_devices(made: Profile, folder: Path) -> dict[str, Any]:
    """Tables of communication and a file of device tasks for rank 0 of `made`, as fields of a Profile.

    Stream 13 holds tasks that overlap; the tasks begin before the first block.
    """
    tasks = [
        ("stream 7 · compute", "gemm", "compute", -50, 40),
        ("stream 13", "ncclSend", "communication", 20, 60),
        ("stream 7 · compute", "gemm", "compute", 40, 90),
        ("stream 13", "ncclRecv", "communication", 50, 90),
        ("stream 13", "copy 数据", "memory", 60, 70),
    ]
    rows = [dict(zip(KERNELS, (s, n, c, ORIGIN + a, ORIGIN + b), strict=True)) for s, n, c, a, b in tasks]
    path = folder / "rank0.arrow"
    table(rows, KERNELS).write_ipc(path)
    p2p = {"rank": 0, "role": "send", "peer": 2, "direction": "F", "microbatch": 0, "op": "isend", "bytes": 4096}
    collective = {"rank": 2, "group": "dp", "sequence": 0, "op": "allreduce", "bytes": 8}
    return {
        "p2p": table([{**p2p, "start_ns": ORIGIN + 95, "end_ns": ORIGIN + 105}], P2P),
        "collectives": table([{**collective, "start_ns": ORIGIN + 700, "end_ns": ORIGIN + 800}], COLLECTIVES),
        "kernels": (KernelFile(0, path),),
    }


def detailed(made: Profile, **more: Any) -> ChartOptions:
    """The options that draw all that there is, as `render` gives them."""
    return ChartOptions(detail="kernels", clocks=clock_texts(made), device_tasks=partial(task_batches, made), **more)


def memory_counter() -> pl.DataFrame:
    rows = [
        {"rank": 0, "name": "memory", "unit": "bytes", "ts_ns": ORIGIN + t, "value": v} for t, v in ((0, 5.0), (9, 7.5))
    ]
    return table(rows, COUNTERS)
