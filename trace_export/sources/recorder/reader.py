"""The recorder's files: `rankN.blocks`, and `rankN.blocks.earlier`, what was in it before it reached its limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError, path_text
from trace_export.files import end_of, is_file
from trace_export.model import HOSTS, INT, RANKS, SPANS, Declared, Note, Profile, conform
from trace_export.sources.recorder.find import EARLIER, header_of
from trace_export.sources.recorder.lines import BLOCKS, Header, Scanner, pieces
from trace_export.sources.source import ReadOptions, Source

BEGINNING_BYTES = 256 << 10
"""The size of a piece where only the beginning is wanted."""
END_BYTES = 64 << 10
"""The last bytes of a file, which say when the recording ended."""


def read(source: Source, options: ReadOptions) -> Profile:
    """The blocks of one rank, in nanoseconds of the clock of the machine that recorded it.

    Raises SourceError when the file cannot be read, or holds no header or no block.
    """
    left = options.beginning * BEGINNING_BYTES
    notes: list[Note] = []
    header: Header | None = None
    frames = [pl.DataFrame(schema=BLOCKS)]
    recorded_until: dict[str, int | None] = {}
    try:
        paths = _files(source.path, notes)
        for path in paths:
            scanner = Scanner(path, header)
            frames += map(scanner.take, pieces(path, left))
            header = scanner.header
            notes += malformed(scanner)
            if options.beginning:
                left -= path.stat().st_size
                if left <= 0:
                    recorded_until = {path_text(source.path): _last_end_ns(source.path, header)}
                    break
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise SourceError(source.path, what, "check that it is there and readable") from error
    if header is None:
        raise SourceError(source.path, "no header of the recorder in this file", "record it again")
    blocks = pl.concat(frames)
    if blocks.is_empty():
        raise SourceError(source.path, "no block in this file", "record it again, for longer")
    return replace(profile_of(source, header, blocks).with_notes(notes), recorded_until=recorded_until)


def malformed(scanner: Scanner) -> list[Note]:
    """A note on the lines that could not be read, if any."""
    where = f"{scanner.path}:{scanner.first_malformed}"
    note = Note("records-malformed", "warning", "malformed records, left out", where, scanner.malformed)
    return [note] if scanner.malformed else []


def profile_of(source: Source, header: Header, blocks: pl.DataFrame) -> Profile:
    """The tables of one rank with these blocks (lines.BLOCKS)."""
    rank = source.rank if header.rank is None else header.rank
    host = pl.DataFrame({"host": [header.clock], "machine": source.machine, "label": header.host})
    places = {name: getattr(header, name) for name in ("device", "stage", "dp", "tp", "cp")}
    origins = {
        "rank_origin": source.rank_origin if header.rank is None else "recorded",
        "stage_origin": None if header.stage is None else "recorded",
    }
    of_rank = {"rank": rank, "host": header.clock, "source": path_text(source.path), "kind": source.kind}
    timed = blocks.filter(pl.col("start") >= header.clock_ns)
    start = pl.col("start") + header.unix_ns - header.clock_ns
    early = blocks.height - timed.height
    text = "records of a time before the recorder was started, left out"
    notes = (Note("times-unusable", "warning", text, path_text(source.path), early),) if early else ()
    return Profile(
        hosts=conform(host, HOSTS),
        ranks=conform(pl.DataFrame([{**of_rank, **places, **origins}]), RANKS),
        spans=conform(
            timed.with_columns(rank=pl.lit(rank, INT), run=0, start_ns=start, end_ns=start + pl.col("length")), SPANS
        ),
        declared=Declared(
            pp=header.pp_size, dp=header.dp_size, tp=header.tp_size, cp=header.cp_size, world=header.world
        ),
        notes=notes,
    )


def _files(path: Path, notes: list[Note]) -> list[Path]:
    """The files of one start of the process, in order of time; a note is added where there is one of another start."""
    earlier = path.with_name(path.name + EARLIER)
    if not is_file(earlier):
        return [path]
    before, now = header_of(earlier), header_of(path)
    if before and now and before.process == now.process:
        return [earlier, path]
    text = "blocks of an earlier start of the rank, left out; to draw them, copy the file and take the ending off"
    notes.append(Note("start-superseded", "note", text, str(earlier)))
    return [path]


def _last_end_ns(path: Path, header: Header | None) -> int | None:
    """When the last block of a file ended, in unix time; None where that is not known."""
    _, _, lines = end_of(path, 0, END_BYTES).partition(b"\n")
    blocks = Scanner(path).take(lines)
    latest = (blocks["start"] + blocks["length"]).max()
    return int(latest) + header.unix_ns - header.clock_ns if header and isinstance(latest, int) else None
