"""One rank of an Ascend run, from torch_npu or MindSpore, database or text export → its tables.

What differs between the exports is in `database.py` and `text_export.py`; what their frames mean is the same for all:
markers become blocks (`marker_blocks.py`), operators become transfers and collectives (`hccl.py`), and where
there are no markers, kernels become blocks (`kernel_inference.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.model import HOSTS, INT, OUTSIDE, RANKS, SPANS, TIME, KernelFile, Note, Profile, concat, conform
from trace_export.schedules.passes import BACKWARDS, FORWARDS
from trace_export.sources.ascend import database, device_tasks, hccl, marker_blocks, text_export, trace_view
from trace_export.sources.ascend.layout import TRACES, home_of
from trace_export.sources.ascend.metadata import MAX_JSON, META_NAMES, Metadata, metadata
from trace_export.sources.ranges.devices import SEVERAL
from trace_export.sources.ranges.dialects import Dialects, run_facts
from trace_export.sources.ranges.named import NameCounts
from trace_export.sources.ranges.notes import impossible_times, unmatched, without_times
from trace_export.sources.shared.names import LONGEST_NAME
from trace_export.sources.shared.sqlite import PIECE_ROWS, Database
from trace_export.sources.shared.timestamps import ZERO_NS
from trace_export.sources.source import ReadOptions, Source, TaskRequest
from trace_export.stream_order import FEW

LARGEST = 2**31
"""Ranks and devices are numbered below this; `database.NOT_AVAILABLE` lies above."""
SOME = 0.1
"""Such a part of the kernels, and FEW, may run past the next one of their stream: wrong records."""


def read(source: Source, options: ReadOptions) -> Profile:
    """The tables of one rank. Raises SourceError when its files hold nothing that can be read."""
    if source.path.is_dir():
        return _from_text(source, options)
    with Database(source.path, options.beginning * PIECE_ROWS, database.PARTS) as db:
        found = _from_database(db, source, options)
        short = not db.shortened.isdisjoint(("task", "mstx_events", "communication_op"))
        return replace(found, recorded_until={path_text(source.path): db.last("TASK", "startNs")} if short else {})


def read_tasks(request: TaskRequest) -> tuple[KernelFile, ...]:
    """The device tasks of one rank. Raises SourceError when its files cannot be read."""
    if request.path.is_dir():
        return device_tasks.from_text(text_export.kernels(request.path), request)
    with Database(request.path) as db:
        return device_tasks.from_database(db, request)


@dataclass(frozen=True)
class _Recorded:
    """What the files of one rank hold; the frames as in the modules named like them. `whole`: all tasks were read."""

    rank: int
    rank_origin: str
    device: int | None
    host: str
    label: str
    meta: Metadata
    marks: pl.DataFrame
    steps: pl.DataFrame
    operators: pl.DataFrame
    copies: pl.DataFrame
    counters: pl.DataFrame
    kernels: Callable[[], pl.DataFrame]
    optimizing: Callable[[], pl.DataFrame]
    busy: marker_blocks.Busy | None
    notes: tuple[Note, ...]
    epoch: str | None = None
    whole: bool = True


def _profile(found: _Recorded, source: Source, options: ReadOptions) -> Profile:
    alone = pl.lit(0, INT).alias("capture")
    marks = (_on_host(found.marks) if options.host_ranges else found.marks).with_columns(alone)
    names = Dialects.of(options.markers).parse(marks["text"]).names
    spans, noted = marker_blocks.spans(marks, names, found.steps.with_columns(alone), found.busy)
    spans, notes = spans.with_columns(rank=pl.lit(found.rank, INT)), [note for _, note in noted]
    if options.host_ranges and not spans["kind"].is_in(marker_blocks.PASSES).any():
        what = "has no markers of forwards and backwards, so there is nothing of the host to draw"
        raise SourceError(
            source.path, what, "leave out `host_ranges`, or record with the passes marked by trace-export run"
        )
    calls = hccl.tables(
        found.operators.with_columns(alone), found.copies.with_columns(alone), [(found.meta, found.rank)]
    )
    p2p, collectives = (table.with_columns(rank=pl.lit(found.rank, INT)) for table in calls)
    origins = spans.filter(pl.col("kind").is_in(marker_blocks.PASSES))["origin"]
    if origins.is_empty() or (found.whole and not options.host_ranges and (origins == "host").all()):
        from trace_export.sources.ascend import kernel_inference  # and numpy, which most runs do without

        kernels, cut, far = kernel_inference.possible(found.kernels())
        if cut > max(FEW, SOME * kernels.height):
            what = f"{cut} of its {kernels.height} kernels run past the next one of their stream"
            raise SourceError(
                source.path, f"{what}: several processes wrote it", "let each rank write a capture of its own"
            )
        inferred = kernel_inference.spans(kernels, p2p["start_ns"], collectives["start_ns"], found.rank)
        if inferred.height or origins.is_empty():
            spans = inferred
            why = _no_blocks(marks["text"], kernels) if spans.is_empty() else ""
            notes += [_inferred_note(why, marked=len(origins) > 0), *impossible_times(source.path, 0, cut)]
            notes += [without_times(source.path, far)] if far else []
    else:
        if found.whole and not options.host_ranges:
            spans, more = _completed(found, spans, p2p, collectives)
            notes += more
        if options.optimizer:
            from trace_export.sources.ascend import kernel_inference

            spans = pl.concat([spans, kernel_inference.optimizer(found.optimizing(), spans, found.rank)])
    notes = [replace(note, where=note.where or str(source.path)) for note in notes]
    known = (found.rank, found.rank_origin, found.device)
    return Profile(
        hosts=pl.DataFrame([host_row(source, found.host, found.label, found.epoch)], HOSTS),
        ranks=pl.DataFrame([rank_row(source, known, found.host, found.meta, marker_blocks.stage(names))], RANKS),
        spans=spans,
        p2p=p2p,
        collectives=collectives,
        counters=found.counters,
        declared=found.meta.declared.or_else(run_facts(spans["marker"])),
        notes=(*found.meta.notes, *found.notes, *notes),
    )


def _completed(
    found: _Recorded, spans: pl.DataFrame, p2p: pl.DataFrame, collectives: pl.DataFrame
) -> tuple[pl.DataFrame, list[Note]]:
    """`spans` with the forwards, or the backwards, that no marker names, where the kernels show them, and show the
    passes that markers name as these do; and a note, or a warning where they do not and much is computed outside. A
    backward is of the step of the forward before it, a forward of that of the backward after it."""
    missing = [kind for kind, some in (("F", FORWARDS), ("B", BACKWARDS)) if not spans.select(some.any()).item()]
    if not missing:
        return spans, []
    from trace_export.sources.ascend import kernel_inference
    from trace_export.sources.ranges.inferred import alike

    kernels, *_ = kernel_inference.possible(found.kernels())
    inferred = kernel_inference.spans(kernels, p2p["start_ns"], collectives["start_ns"], found.rank)
    of_marks, of_kernels = (blocks.rename({"start_ns": "start", "end_ns": "end"}) for blocks in (spans, inferred))
    (named,) = {"F", "B"} - {*missing}
    if alike(of_marks, of_kernels, named):
        steps = spans.filter(FORWARDS | BACKWARDS).select("start_ns", "step").sort("start_ns")
        more = inferred.filter(pl.col("kind").is_in(missing)).sort("start_ns").drop("step")
        more = more.join_asof(steps, on="start_ns", strategy="backward" if "B" in missing else "forward")
        more = conform(more, SPANS)
        text = "blocks inferred from kernel types, because markers name only some of the passes"
        return pl.concat([spans, more]), [Note("blocks-inferred", "note", text, count=more.height)]
    if (outside := _outside(kernels, spans)) < OUTSIDE:
        return spans, []
    what = "backwards" if "B" in missing else "forwards"
    text = f"no marker names {what}, kernels do not show them as exactly, and {outside:.0%} of the computing lies"
    return spans, [Note("names-partial", "warning", f"{text} outside all blocks, which the bubble counts as idle")]


def _outside(kernels: pl.DataFrame, spans: pl.DataFrame) -> float:
    """The share of the time of the `kernels` that lies in none of the `spans`, by where they begin; without those of
    optimizers, which are seldom named."""
    ends = spans.select(begin="start_ns", until="end_ns").sort("begin")
    placed = (
        kernels.filter(~pl.col("text").str.contains(marker_blocks.OPTIMIZER))
        .sort("start_ns")
        .join_asof(ends, left_on="start_ns", right_on="begin")
    )
    length, inside = pl.col("end_ns") - pl.col("start_ns"), (pl.col("start_ns") < pl.col("until")).fill_null(False)
    outside, total = placed.select(length.filter(~inside).sum(), total=length.sum()).row(0)
    return outside / total if total else 0.0


def host_row(source: Source, host: str, label: str, epoch: str | None = None) -> dict[str, object]:
    """A row of model.HOSTS."""
    return {"host": host, "machine": source.machine, "label": label, "epoch": epoch}


def rank_row(
    source: Source, known: tuple[int, str, int | None], host: str, meta: Metadata, marked_stage: int | None
) -> dict[str, object]:
    """A row of model.RANKS: `known` are the rank, how sure that is, and the device; the stage is that of the metadata,
    else the `marked_stage`."""
    rank, origin, device = known
    place = {"stage": marked_stage} | meta.place
    return {
        **place, "rank": rank, "rank_origin": origin, "device": device, "host": host,
        "source": path_text(source.path), "kind": source.kind,
        "stage_origin": None if place.get("stage") is None else "recorded",
    }  # fmt: skip


def _no_blocks(texts: pl.Series, kernels: pl.DataFrame) -> str:
    """Why a rank has no block: what of its ranges (`texts`) and of its compute kernels (`WORKED`)."""
    from trace_export.sources.ascend import kernel_inference

    counts = NameCounts()
    counts.add(texts)
    frequent = ", ".join(counts.most_frequent())
    named = f" (the most frequent names: {frequent})" if frequent else ""
    return (
        f"no pipeline blocks: no range is marked as a forward or a backward{named}, and {kernel_inference.why(kernels)}"
    )


def _inferred_note(nothing: str, *, marked: bool) -> Note:
    """What is said of blocks that were inferred, or why there is `nothing`. `marked`: the host has markers of passes,
    and the device none."""
    if nothing:
        return Note("blocks-not-found", "warning", nothing)
    why = "no marker is on the device (they were made without a stream)" if marked else "no markers"
    text = f"{why}; blocks were inferred from kernel types, with the loss as forward"
    return Note("blocks-inferred", "note", text)


def unclosed_note(count: int) -> Note:
    text = "ranges still open on the device at the end of the capture, left out"
    return Note("ranges-unclosed", "note", text, count=count)


def _on_host(marks: pl.DataFrame) -> pl.DataFrame:
    """The ranges as the host issued them."""
    known = marks.filter(pl.col("host_start_ns").is_not_null())
    return known.with_columns(start_ns="host_start_ns", end_ns="host_end_ns", origin=pl.lit("host"))


def _from_database(db: Database, source: Source, options: ReadOptions) -> Profile:
    if not (db.has("TASK") and db.has("STRING_IDS")):
        raise SourceError(source.path, "holds no device tasks (table TASK)", "export the profile again")
    rank, device, origin = identity(db, source)
    all_tasks = "task" not in db.shortened
    dialects = Dialects.of(options.markers)
    marks, lost = database.marks(db, dialects, on_device=all_tasks)
    operators, copies = database.operators(db, marks)
    host, label = host_of(db, source)
    found = _Recorded(
        rank=rank, rank_origin=origin, device=device, host=host, label=label,
        meta=metadata_of(db, source, rank), marks=marks, steps=conform(database.steps(db), marker_blocks.STEPS),
        operators=operators, copies=copies,
        counters=database.counters(db, rank), kernels=lambda: database.kernels(db),
        busy=(lambda ranges: database.busy(db, ranges)) if all_tasks and db.has("COMPUTE_TASK_INFO") else None,
        optimizing=lambda: database.kernels_called(db, marker_blocks.OPTIMIZER),
        notes=(
            *((replace(unclosed_note(lost), where=str(source.path)),) if lost else ()),
            *unmatched(source.path, dialects.unmatched(marks["text"])),
        ),
        whole=all_tasks,
    )  # fmt: skip
    devices = devices_of(db, rank)
    if len(devices) < 2 or not all_tasks:
        return _profile(found, source, options)
    return _of_devices(db, found, devices, source, options)


def devices_of(db: Database, rank: int) -> list[int]:
    """The devices of a process with this rank, where the profiler lists several with one rank."""
    if not db.has("RANK_DEVICE_MAP", "rankId", "deviceId"):
        return []
    rows = db.texts("SELECT rankId, deviceId FROM RANK_DEVICE_MAP")
    valid = [(r, d) for r, d in rows if isinstance(d, int) and 0 <= d < LARGEST]
    owners = {r for r, _ in valid}
    return sorted({d for r, d in valid if len(owners) == 1 or r == rank})


def _of_devices(db: Database, found: _Recorded, listed: list[int], source: Source, options: ReadOptions) -> Profile:
    """The profile of a process with several devices: a rank for each device on which markers are. Raises SourceError
    where there are no markers and kernels ran on several."""
    marked = sorted(found.marks["device"].drop_nulls().unique())
    if len(marked) < 2:
        if not marked and len(database.has_work_on(db, listed)) > 1:
            what = f"{SEVERAL}, and no marker is on any of them"
            raise SourceError(source.path, what, "mark the passes with mstx.range_start(message, stream)")
        return _profile(found, source, options)
    profiles = []
    for place, device in enumerate(marked):
        marks = found.marks.filter(device=device)
        operators, copies = database.operators(db, marks, device)
        rank = found.rank * len(marked) + place if found.rank else device
        own = replace(
            found, rank=rank, rank_origin="inferred", device=device, marks=marks, operators=operators,
            meta=replace(found.meta, place={}), copies=copies,
            counters=found.counters.clear(), notes=found.notes if place == 0 else (),
        )  # fmt: skip
        made = _profile(own, source, options)
        profiles.append(replace(made, ranks=made.ranks.with_columns(process=pl.lit(device, TIME))))
    whole = concat(profiles)
    text = f"{SEVERAL}; each of its {len(marked)} devices is drawn as a rank of its own, numbered by its place"
    return replace(
        whole,
        hosts=whole.hosts.unique("host", keep="first", maintain_order=True),
        notes=(*whole.notes, Note("ranks-of-devices", "note", text, str(source.path))),
    )


def identity(db: Database, source: Source) -> tuple[int, int | None, str]:
    """(rank, device, how sure the rank is): the layout's rank, else the database's, else 0."""
    known = [(-1, -1)]
    if db.has("RANK_DEVICE_MAP", "rankId", "deviceId"):
        known = db.texts("SELECT rankId, deviceId FROM RANK_DEVICE_MAP") or known
    inside = next(((r, d) for r, d in known if r == source.rank), known[0])
    device = inside[1] if isinstance(inside[1], int) and 0 <= inside[1] < LARGEST else None
    if source.rank is not None:
        return source.rank, device, source.rank_origin
    if isinstance(inside[0], int) and 0 <= inside[0] < LARGEST:
        return inside[0], device, "recorded"
    return 0, device, "assumed"


def host_of(db: Database, source: Source) -> tuple[str, str]:
    """Key and label of the clock domain: the host as the database knows it, else as the layout does."""
    if db.has("HOST_INFO", "hostUid", "hostName"):
        for uid, name in db.texts(
            f"SELECT substr(hostUid, 1, {LONGEST_NAME}), substr(hostName, 1, {LONGEST_NAME}) FROM HOST_INFO LIMIT 1"
        ):
            if uid:
                return str(uid), str(name or uid)
    return source.host, source.host


def metadata_of(db: Database, source: Source, rank: int) -> Metadata:
    rows = []
    if db.has("META_DATA", "name", "value"):
        names = ", ".join(f"'{name}'" for name in META_NAMES)
        value = f"CASE WHEN length(value) <= {MAX_JSON} THEN value ELSE '' END"
        sql = f"SELECT name, {value} FROM META_DATA WHERE name IN ({names})"
        rows = [(str(name), str(value)) for name, value in db.texts(sql)]
    return metadata(rows, home_of(source.path.parent, [source.path.name]), rank, source.path)


def _from_text(source: Source, options: ReadOptions) -> Profile:
    folder, rank = source.path, 0 if source.rank is None else source.rank
    notes = list(text_export.unfinished(folder))
    seen = _trace(folder, Dialects.of(options.markers))
    rows = text_export.kernels(folder)
    of_hccl = pl.col("core").is_in(text_export.COMMUNICATION).fill_null(False)
    is_communication = of_hccl | pl.col("name").str.starts_with("hcom_")
    communication = rows.filter(is_communication).collect(engine="streaming")
    computing = rows.filter(~is_communication)
    by_step = computing.group_by("step").agg(pl.col("end_ns").max()).drop_nulls().collect(engine="streaming")
    correlated = seen.marks["host_start_ns"].null_count() == 0 and len(seen.steps) > 0
    operators, copies = text_export.operators(communication, folder, notes)
    host, epoch, counters = source.host, None, text_export.counters(folder)
    if seen.tasks is not None:
        seen, epoch = _on_one_clock(seen, rows, operators, folder, notes)
    if epoch is not None:
        host = f"{source.host} rank {rank}"
        text = "samples of memory at unix times, left out: the times of the blocks count from the start of the rank"
        notes += [Note("samples-unplaced", "note", text, str(folder), len(counters))] if len(counters) else []
        counters = counters.clear()
    found = _Recorded(
        rank=rank,
        rank_origin="assumed" if source.rank is None else source.rank_origin,
        device=text_export.device(folder),
        host=host,
        label=host,
        epoch=epoch,
        meta=metadata((), home_of(folder), rank, folder),
        marks=seen.marks,
        steps=seen.steps if correlated or by_step.is_empty() else text_export.steps(by_step),
        operators=operators,
        copies=copies,
        counters=pl.concat([seen.counters, counters]).with_columns(rank=pl.lit(rank, INT)),
        kernels=lambda: text_export.worked(computing),
        busy=(lambda ranges: text_export.busy(computing, ranges)) if len(by_step) else None,
        optimizing=lambda: text_export.kernels_called(computing, marker_blocks.OPTIMIZER),
        notes=(*seen.notes, *notes),
    )
    return _profile(found, source, options)


def _on_one_clock(
    seen: trace_view.TraceView, rows: pl.LazyFrame, operators: pl.DataFrame, folder: Path, notes: list[Note]
) -> tuple[trace_view.TraceView, str | None]:
    """The trace of a rank, whose times count from the start of its recording, in the clock of the tables beside it (the
    `rows` of kernel_details.csv, or else the `operators`), and the epoch of that clock. Appends a note on it.

    Raises SourceError where there are tables and nothing says how their clock and that of the trace differ.
    """
    path = _trace_in(folder)
    table = rows.select("start_ns", "end_ns").collect(engine="streaming")
    table = operators.select("start_ns", "end_ns").drop_nulls() if table.is_empty() else table
    assert seen.tasks is not None
    if table.is_empty():
        return seen.moved(ZERO_NS), "start"
    offset = trace_view.clock_offset(seen.tasks, table)
    if offset is None and seen.marks.is_empty():
        return trace_view.NOTHING, None
    if offset is None:
        what = "counts its times from the start of the recording, and nothing in it is in the tables beside it"
        raise SourceError(path, what, "export the profile again, or draw trace_view.json without the tables beside it")
    text = "times that count from the start of the recording, placed by the kernels that the tables have too"
    notes.append(Note("trace-times-relative", "note", text, str(path)))
    return seen.moved(offset), None


def _trace(folder: Path, dialects: Dialects) -> trace_view.TraceView:
    path = _trace_in(folder)
    if path.is_file():
        return trace_view.read(path, dialects)
    return replace(
        trace_view.NOTHING, notes=tuple(unmatched(folder, dialects.unmatched(pl.Series([], dtype=pl.String))))
    )


def _trace_in(folder: Path) -> Path:
    """The trace of a text export, packed or not."""
    return next((path for name in TRACES if (path := folder / name).is_file()), folder / TRACES[0])
