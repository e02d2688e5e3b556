"""The recorder's files: `rankN.blocks`, and `rankN.blocks.earlier`, what was in it before it reached its limit; or what
another start recorded, which is a source of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.files import EMPTY, end_of, is_empty, is_file
from trace_export.model import HOSTS, INT, RANKS, SPANS, TIME, Declared, Note, Profile, conform
from trace_export.sources.recorder.find import EARLIER, is_other
from trace_export.sources.recorder.lines import BLOCKS, Header, Scanner, pieces
from trace_export.sources.shared.batch import each
from trace_export.sources.source import ReadOptions, Source

BEGINNING_BYTES = 256 << 10
"""The size of a piece where only the beginning is wanted."""
END_BYTES = 64 << 10
"""The last bytes of a file, which say when the recording ended."""


def read_one(source: Source, options: ReadOptions) -> Profile:
    """The blocks of one rank, in nanoseconds of the clock of the machine that recorded it.

    Raises SourceError when the file holds no header or no block, OSError.
    """
    left = options.beginning * BEGINNING_BYTES
    notes: list[Note] = []
    header: Header | None = None
    frames = [pl.DataFrame(schema=BLOCKS)]
    recorded_until: dict[str, int | None] = {}
    for path in files(source.path):
        scanner = Scanner(path, header)
        frames += map(scanner.take, pieces(path, left))
        header = scanner.header
        notes += malformed(scanner)
        if options.beginning:
            left -= path.stat().st_size
            if left <= 0:
                recorded_until = {path_text(source.path): _last_end_ns(source.path, header)}
                break
    if header is None:
        what = EMPTY if is_empty(source.path) else "no header of the recorder in this file"
        raise SourceError(source.path, what, "record it again")
    blocks = pl.concat(frames)
    if blocks.is_empty():
        raise SourceError(source.path, "no block in this file", "record it again, for longer")
    profile = profile_of([(source, header)], blocks.with_columns(file=pl.lit(0, pl.UInt32)))
    return replace(profile.with_notes(notes), recorded_until=recorded_until)


read = partial(each, read_one)


def malformed(scanner: Scanner) -> list[Note]:
    """A note on the lines that could not be read, if any."""
    where = f"{scanner.path}:{scanner.first_malformed}"
    note = Note("records-malformed", "warning", "malformed records, left out", where, scanner.malformed)
    return [note] if scanner.malformed else []


def profile_of(files: Sequence[tuple[Source, Header]], blocks: pl.DataFrame) -> Profile:
    """The tables of the ranks whose `files` these are. `blocks`: lines.BLOCKS, and `file`, a place among the files."""
    ranks = pl.DataFrame([_rank(source, header) for source, header in files], infer_schema_length=None)
    hosts = pl.DataFrame([{"host": h.clock, "machine": s.machine, "label": h.host} for s, h in files])
    clocks = pl.DataFrame(
        [(rank, h.clock_ns, h.unix_ns - h.clock_ns) for rank, (_, h) in zip(ranks["rank"], files, strict=True)],
        {"rank": INT, "clock_ns": TIME, "to_unix_ns": TIME},
        orient="row",
    ).with_row_index("file")
    placed = blocks.join(clocks, on="file", how="left", maintain_order="left")
    timed = placed.filter(pl.col("start") >= pl.col("clock_ns"))
    start = pl.col("start") + pl.col("to_unix_ns")
    sizes = Declared()
    for _, h in files:
        sizes = sizes.or_else(Declared(pp=h.pp_size, dp=h.dp_size, tp=h.tp_size, cp=h.cp_size, world=h.world))
    early = placed.height - timed.height
    text = "records of a time before the recorder was started, left out"
    notes = (Note("times-unusable", "warning", text, path_text(files[0][0].path), early),) if early else ()
    return Profile(
        hosts=conform(hosts.unique("host", keep="first", maintain_order=True), HOSTS),
        ranks=conform(ranks, RANKS),
        spans=conform(timed.with_columns(run=0, start_ns=start, end_ns=start + pl.col("length")), SPANS),
        declared=sizes,
        notes=notes,
    )


def _rank(source: Source, header: Header) -> dict[str, object]:
    """A row of RANKS."""
    places = {name: getattr(header, name) for name in ("device", "stage", "dp", "tp", "cp")}
    number = {} if header.rank is None else {"rank": header.rank, "rank_origin": "recorded"}
    return source.rank_row(host=header.clock, pid=header.pid, begun_ns=header.unix_ns, **places, **number)


def files(path: Path) -> list[Path]:
    """The files of one start of the process, in order of time."""
    earlier = path.with_name(path.name + EARLIER)
    return [earlier, path] if is_file(earlier) and not is_other(earlier) else [path]


def _last_end_ns(path: Path, header: Header | None) -> int | None:
    """When the last block of a file ended, in unix time; None where that is not known."""
    _, _, lines = end_of(path, 0, END_BYTES).partition(b"\n")
    blocks = Scanner(path).take(lines)
    latest = (blocks["start"] + blocks["length"]).max()
    return int(latest) + header.unix_ns - header.clock_ns if header and isinstance(latest, int) else None
