"""The index of a folder, kept in a file, so that later commands open only the sources that they need.

The file holds the path, size and time of change of each source, and the place of each of its ranks; once an overview
has read a rank, also its steps, begin and end. It is valid as long as no folder below the log_dir has changed, and no
source whose ranks its name does not tell.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, astuple
from itertools import starmap
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.errors import UsageError
from trace_export.files import is_file, real_path
from trace_export.model import INT, TEXT, TIME, Declared, Note, Schema, empty
from trace_export.read import LoadOptions, Located, option_files
from trace_export.scale.places import RANK_PLACES, Places
from trace_export.sources.folders import walk
from trace_export.sources.source import Source
from trace_export.workers.identity import identity
from trace_export.writers import mark
from trace_export.writers.outputs import Outputs

NAME = ".trace_export_index.parquet"
_SOURCES: Schema = {
    "kind": TEXT, "path": TEXT, "host": TEXT, "machine": INT, "own_rank": INT, "rank_origin": TEXT, "device": INT,
    "local_rank": INT, "ranks_per_machine": INT, "machine_name": TEXT, "size": TIME, "changed_ns": TIME,
}  # fmt: skip
"""The fields of a source (its rank as `own_rank`), and the state of its file."""
HELD: Schema = {"rank": INT, "first_step": INT, "last_step": INT, "start_ns": TIME, "end_ns": TIME}
"""The steps of a rank, and its time on the axis of its replica; null if its source has changed since, or was not read
yet."""


def load(cache: Path, options: LoadOptions) -> tuple[Located, Places, pl.DataFrame] | None:
    """The index of an earlier command with the same options, and the steps of its ranks (`HELD`); None if there is
    none, or it is out of date."""
    path = cache / NAME
    if not is_file(path):
        return None
    try:
        metadata = pl.read_parquet_metadata(path)
        facts = {name: orjson.loads(metadata[name]) for name in ("key", "folders", "declared", "notes", "how")}
        if facts["key"] != _key(options) or not _unchanged(options.log_dir, facts["folders"]):
            return None
        table = pl.read_parquet(path)
        first = table.unique("source", keep="first", maintain_order=True).sort("source")
        sources = [_source(row) for row in first.iter_rows(named=True)]
    except (pl.exceptions.PolarsError, orjson.JSONDecodeError, KeyError, TypeError, OSError):
        return None  # of another version, or damaged: then it is written anew
    states = zip(sources, first.select("size", "changed_ns").iter_rows(), strict=True)
    changed = [source.rank is None for source, state in states if _state(source.path) != state]
    if any(changed):
        return None
    held = table.select(HELD.keys())
    notes, how = (tuple(starmap(Note, facts[name])) for name in ("notes", "how"))
    files = (*(source.path for source in sources), *option_files(options), path)
    places = Places(table.select(RANK_PLACES.keys()), Declared(**facts["declared"]), how)
    return Located(sources, notes, (), files), places, held.clear() if changed else held


def store(
    cache: Path, options: LoadOptions, located: Located, places: Places, held: pl.DataFrame | None = None
) -> None:
    """Keeps the index, and the steps of the ranks (`HELD`). Raises OutputError, UsageError."""
    rows = [(number, *_row(source)) for number, source in enumerate(located.sources)]
    sources = pl.DataFrame(rows, {"source": pl.UInt32(), **_SOURCES}, orient="row")
    contents = empty(HELD) if held is None else held
    table = sources.join(places.table, on="source", maintain_order="right").sort("rank", "source")
    table = table.join(contents, on="rank", how="left", maintain_order="left")
    facts: dict[str, Any] = {
        "key": _key(options), "folders": _folders(options), "declared": asdict(places.declared),
        "notes": [astuple(note) for note in located.notes], "how": [astuple(note) for note in places.notes],
    }  # fmt: skip
    texts = {name: orjson.dumps(fact).decode() for name, fact in facts.items()}
    inputs = [file for file in located.inputs if file != cache / NAME]  # which it is, too, once it has been used
    with Outputs(inputs).file(cache / NAME) as temporary:
        table.write_parquet(temporary, metadata={**texts, **mark.PARQUET_METADATA})


def refuse_beside_profiles(cache: Path, options: LoadOptions) -> None:
    """Raises UsageError where the cache would lie beside the profiles."""
    if real_path(cache).is_relative_to(real_path(options.log_dir)):
        what = f"{cache} lies in the folder of the profiles"
        raise UsageError(what, "name a folder outside it", parameter="cache")


def _key(options: LoadOptions) -> str:
    """A hash of the options and the code by which the sources were found and placed."""
    read = options.read
    asked = (
        str(real_path(options.log_dir)), [str(file) for file in options.files], options.family, options.follow_links,
        options.run, read.host_ranges, list(read.markers), read.infer, asdict(options.declared), identity().code,
    )  # fmt: skip
    return hashlib.sha256(orjson.dumps(asked)).hexdigest()


def _folders(options: LoadOptions) -> dict[str, int]:
    """All folders below the log_dir, and when each was changed: an entry that comes or goes changes its folder."""
    folders, _ = walk(options.log_dir, follow_links=options.follow_links)
    return {os.path.relpath(folder.path, options.log_dir): folder.path.stat().st_mtime_ns for folder in folders}


def _unchanged(log_dir: Path, folders: dict[str, int]) -> bool:
    """Whether all folders are as they were; raises OSError where one is gone."""
    return all((log_dir / name).stat().st_mtime_ns == changed for name, changed in folders.items())


def _state(path: Path) -> tuple[int | None, int | None]:
    """Size and time of change; None where there is no such file any more."""
    try:
        status = path.stat()
    except OSError:
        return None, None
    return status.st_size, status.st_mtime_ns


def _row(source: Source) -> tuple[object, ...]:
    values = [getattr(source, "rank" if name == "own_rank" else name) for name in list(_SOURCES)[:-2]]
    return (*(str(value) if isinstance(value, Path) else value for value in values), *_state(source.path))


def _source(row: dict[str, Any]) -> Source:
    given = {name: row[name] for name in list(_SOURCES)[:-2] if name not in ("own_rank", "path")}
    return Source(path=Path(row["path"]), rank=row["own_rank"], **given)
