"""Folder → the list of sources.

One walk over the folder, then the detector of each format; each takes the same list of folders and returns the sources
it is sure of. Ranks and machines come from names here; a reader may find better evidence in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trace_export.errors import path_text
from trace_export.model import Note
from trace_export.ordering import natural
from trace_export.sources import formats
from trace_export.sources.folders import ALONE, Folder, SearchResult, Unrecognised, walk
from trace_export.sources.not_here import NOT_FETCHED, not_here, not_unpacked
from trace_export.sources.source import Source

CLOSED = "a folder that cannot be read, so nothing in it is here; check its permissions"


def find(root: Path, *, follow_links: bool = False, only: Sequence[Path] = ()) -> SearchResult:
    """All sources under `root`, or, if given, among the files `only`, in natural order of their paths. Opens files only
    to read their first bytes, and goes through links to folders outside `root` only with `follow_links`.

    Raises UsageError when `root` is not a folder.
    """
    folders, links, closed = (_of_files(only), [], []) if only else walk(root, follow_links=follow_links)
    detectors = dict.fromkeys(row.load_detector() for row in formats.FORMATS)  # formats may share one
    results = [detect(root, folders) for detect in detectors]
    sources = tuple(replace(s, host=path_text(s.host)) for f in results for s in f.sources)
    packed = tuple(not_unpacked(folders))
    others = () if sources or packed else (*not_here(folders), *(Unrecognised("", str(f), CLOSED) for f in closed))
    notes = tuple(replace(n, where=path_text(n.where)) for f in results for n in f.notes)
    return SearchResult(
        sources,
        notes + (_not_here(sources, packed, results) if sources else ()) + _of_links(links) + _of_closed(closed),
        tuple(
            replace(u, path=path_text(u.path))
            for u in (*packed, *others, *(u for one in results for u in one.unrecognised))
        ),
    )


def _of_files(files: Sequence[Path]) -> list[Folder]:
    """The folders of some files, as if they held no others."""
    names: dict[Path, list[str]] = {}
    for file in files:
        names.setdefault(file.parent, []).append(file.name)
    return [Folder(path, tuple(sorted(names[path], key=natural))) for path in sorted(names)]


def _not_here(
    sources: Sequence[Source], packed: Sequence[Unrecognised], results: Sequence[SearchResult]
) -> tuple[Note, ...]:
    """Warnings that files beside the `sources` cannot be read as they lie there."""
    read = {str(source.path) for source in sources}
    absent = [
        u for f in results for u in f.unrecognised if u.what == NOT_FETCHED and str(Path(u.path).parent) not in read
    ]
    notes = []
    if packed:
        notes.append(Note("source-packed", "warning", packed[0].what, path_text(packed[0].path), len(packed)))
    if absent:
        notes.append(Note("source-not-fetched", "warning", NOT_FETCHED, path_text(absent[0].path), len(absent)))
    return tuple(notes)


def _of_links(links: list[Path]) -> tuple[Note, ...]:
    if not links:
        return ()
    text = "links to folders outside the log_dir are not followed without --follow-links"
    return (Note("links-not-followed", "note", text, path_text(links[0]), len(links)),)


def _of_closed(closed: list[Path]) -> tuple[Note, ...]:
    return (Note("folder-unreadable", "warning", CLOSED, path_text(closed[0]), len(closed)),) if closed else ()


def of_all_machines(parts: Sequence[tuple[str, SearchResult]]) -> SearchResult:
    """The results of all machines of a cluster as one; the name of a machine is part of its clock domains' names.

    Logs that are numbered by their place on a machine have the same numbers on every machine: their ranks become
    `assumed`, and `merge` renumbers those that collide.
    """
    sources: list[Source] = []
    for name, result in parts:
        first = 1 + max((s.machine for s in sources), default=-1)
        for source in result.sources:
            counted = len(parts) > 1 and source.rank is not None and source.rank == source.local_rank
            sources.append(
                replace(
                    source,
                    machine_name=name,
                    host=name if source.host == ALONE else f"{name}/{source.host}",
                    machine=first + source.machine,
                    rank_origin="assumed" if counted else source.rank_origin,
                )
            )
    notes = tuple(replace(note, where=f"{name}:{note.where}") for name, result in parts for note in result.notes)
    unrecognised = tuple(replace(u, path=f"{name}:{u.path}") for name, result in parts for u in result.unrecognised)
    return SearchResult(tuple(sources), notes, unrecognised)
