"""What the profiles in a folder hold by now: growing sources are read on, finished ones once, and again if they change.

Of several sources of a rank, as a profiler leaves one for each window of steps, the newest counts, if its run has all
ranks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from trace_export.errors import NothingToExportError, TraceExportError
from trace_export.model import INT, Profile
from trace_export.read import LoadOptions, locate
from trace_export.sources.formats import Follower, of_kind
from trace_export.sources.input_files import files_of
from trace_export.sources.merge import merge
from trace_export.sources.read import read
from trace_export.sources.runs import arrange, recordings_of
from trace_export.sources.shared.batch import TABLES, by_source
from trace_export.sources.shared.timestamps import without_invalid_times
from trace_export.sources.source import Source

FIND_S = 5.0
"""After so long the folder is searched for further sources."""
QUIET_S = 2.0
"""A source other than a log is finished when nothing was written to it for this long."""
FIRST_S = 30.0
"""Before anything is shown, ranks whose first source is still being written are waited for, but no longer than this."""

Signature = tuple[tuple[int, int], ...]


@dataclass
class _Finished:
    """A source that was read whole: how its files were then, and what it held."""

    files: Signature
    result: Profile | TraceExportError


class Growth:
    """The sources in a folder, and what they hold of the last `keep` steps or more.

    `failures` are the errors of sources that cannot be read now, `missing` says why there is none at all; `inputs` are
    all files that may have been read; `lag_s`, how long the last change that `advance` found had been on the disk.
    """

    def __init__(self, options: LoadOptions, keep: int) -> None:
        self.failures: tuple[TraceExportError, ...] = ()
        self.missing: TraceExportError | None = None
        self.inputs: tuple[Path, ...] = ()
        self._changed_s = 0.0
        self._options = options
        self._keep = keep
        self._sources: tuple[Source, ...] = ()
        self._searched_s = -FIND_S
        self._followers: dict[str, Follower] = {}
        self._finished: dict[Source, _Finished] = {}
        self._waiting_since_s: float | None = None

    def advance(self) -> bool:
        """Reads what is new; whether that is anything. Raises UsageError for impossible options."""
        self._search()
        self._changed_s = 0.0
        errors: list[TraceExportError] = []
        grown = False
        whole = []
        for source in self._sources:
            follower = self._follower(source.kind)
            if follower is None:
                whole.append(source)
                continue
            try:
                if follower.advance(source):
                    grown = True
                    self._changed_s = max(self._changed_s, _changed_s(_signature([source.path])))
            except TraceExportError as error:
                errors.append(error)
        grown |= self._read_finished(whole)
        results = [finished.result for finished in self._finished.values()]
        self.failures = (*errors, *(r for r in results if isinstance(r, TraceExportError)))
        return grown

    @property
    def lag_s(self) -> float:
        return max(0.0, time.time() - self._changed_s)

    @property
    def is_followed(self) -> bool:
        """Whether all that is known comes from growing sources."""
        return bool(self._followers) and not self._finished

    def profile(self, after: tuple[int, int] | None = None) -> Profile:
        """Everything that is known by now, as `sources.merge` joins it; of growing sources with a run and a step only
        the steps after that one, whatever job they are of."""
        together = [without_invalid_times(f.profile(after), self._options.log_dir) for f in self._followers.values()]
        parts = together if after is not None else [part for whole in together for part in _of_each_source(whole)]
        results = [finished.result for finished in self._finished.values()]
        parts += [r for r in results if isinstance(r, Profile)]
        profile, refused = merge(parts, offsets=self._options.offsets_ns)
        self.failures += tuple(refused)
        return profile

    def _search(self) -> None:
        now = time.monotonic()
        if now - self._searched_s < FIND_S and self._sources:
            return
        self._searched_s = now
        try:
            located = locate(self._options)
        except TraceExportError as error:  # there may be something later
            if not isinstance(error, NothingToExportError) and not self._sources:
                raise
            self.missing = error
            return
        self.missing = None
        there = {source.path: source for source in located.sources}
        gone = (source for source in self._sources if source.path not in there)
        logs = [source for source in gone if source.kind in self._followers]  # named as long as they are not there
        for source in self._sources:
            if there.get(source.path, source) != source:  # a further rank may change the places of the others
                self._followers.pop(source.kind, None)
        self._sources, self.inputs = (*located.sources, *logs), located.inputs

    def _follower(self, kind: str) -> Follower | None:
        if kind not in self._followers and (made := of_kind(kind).load_follower(self._keep)):
            self._followers[kind] = made
        return self._followers.get(kind)

    def _read_finished(self, sources: Iterable[Source]) -> bool:
        """Reads of each rank the newest finished source, where it was not read as it is now; and the ones before, as
        long as no run has all of these ranks. Such are there while a job that was started again has not recorded all
        of them."""
        of_recording: dict[object, list[tuple[float, Source, Signature]]] = {}
        for source in sources:
            before = None
            files = _signature(files_of([source]))
            changed_s = _changed_s(files)
            recording = (source.kind, source.host, source.path if source.rank is None else source.rank)
            newest = of_recording.setdefault(recording, [])
            quiet = time.time() - changed_s >= QUIET_S
            if not quiet and (before := self._finished.get(source)):  # it is written anew: what it said still counts
                files = before.files
            if quiet or before:
                newest.insert(0, (changed_s, source, files))  # of several as new the last one counts
        newest_first = [sorted(newest, key=lambda one: -one[0]) for newest in of_recording.values() if newest]
        if not self._finished and len(newest_first) < len(of_recording) and self._may_wait():
            return False  # without these ranks the bubble of the first steps would be another
        turns = [
            [newest[n] for newest in newest_first if len(newest) > n]
            for n in range(max(map(len, newest_first), default=0))
        ]
        finished, grown = self._taken(turns[0]) if turns else ({}, False)
        for turn in turns[1:]:
            if not grown:
                finished |= {source: self._finished[source] for _, source, _ in turn if source in self._finished}
            elif _in_one_run(finished.values()):
                break
            else:
                finished |= self._taken(turn)[0]
        self._finished = finished or self._finished
        return grown

    def _taken(self, sources: Iterable[tuple[float, Source, Signature]]) -> tuple[dict[Source, _Finished], bool]:
        """What the sources hold, each read if it was not read as it is now, and whether one was."""
        taken, grown = {}, False
        for changed_s, source, files in sources:
            before = self._finished.get(source)
            if before is None or before.files != files:
                before = _Finished(files, self._read(source))
                self._changed_s = max(self._changed_s, changed_s)
                grown = True
            taken[source] = before
        return taken, grown

    def _may_wait(self) -> bool:
        """Whether the wait for the first sources of all ranks is not too long yet; it begins with the first call."""
        now = time.monotonic()
        self._waiting_since_s = now if self._waiting_since_s is None else self._waiting_since_s
        return now - self._waiting_since_s < FIRST_S

    def _read(self, source: Source) -> Profile | TraceExportError:
        try:
            return read(source, self._options.read)
        except TraceExportError as error:
            return error


def _of_each_source(whole: Profile) -> list[Profile]:
    """The profile of each of the sources that were read together, so that the jobs among them are told apart."""
    paths = whole.ranks["source"].unique(maintain_order=True)
    number = whole.ranks["source"].replace_strict(paths, range(len(paths)), return_dtype=INT)
    owner = pl.col("rank").replace_strict(whole.ranks["rank"], number, return_dtype=INT)
    frames: dict[str, list[Any]] = {name: by_source(getattr(whole, name), owner, len(paths)) for name in TABLES}
    hosts = [whole.hosts.join(ranks, on="host", how="semi", maintain_order="left") for ranks in frames["ranks"]]
    return [
        replace(whole, hosts=hosts[n], **{name: of_source[n] for name, of_source in frames.items()})
        for n in range(len(paths))
    ]


def _in_one_run(finished: Iterable[_Finished]) -> bool:
    """Whether there is a run with all the ranks that are in one."""
    profiles = [
        part for one in finished if isinstance(one.result, Profile) for part in (*one.result.earlier, one.result)
    ]
    runs = arrange(recordings_of(profiles))
    ranks = {rank for run in runs for one in run.recordings for rank in one.ranks}
    return len(runs) < 2 or any(run.size >= len(ranks) for run in runs)


def _signature(paths: Iterable[Path]) -> Signature:
    """Size and time of the last change (ns) of each file that is there."""
    signature = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue  # not each of them exists
        signature.append((status.st_size, status.st_mtime_ns))
    return tuple(signature)


def _changed_s(files: Signature) -> float:
    """When the last of them was changed."""
    return max((mtime_ns for _, mtime_ns in files), default=0) / 1e9
