"""Assigns recordings to the runs of a job, and to the windows of a run.

A **run** is one start of the job, a **window** one recording within it. The recordings of one process are windows of
its run; those of several processes belong to one run if they are of different ranks and close in time. Example, of a
job of two ranks that was recorded twice, died and was started again (time runs to the right):

    rank 0   ──a──    ──c──                 ──e──
    rank 1    ──b──    ──d──
              window 1 window 2
             └───── run 1 ─────┘           └ run 2 ┘

a and c have one process id, e has another. Run 2 lacks rank 1, so that run 1 is the newest complete one.
"""

from __future__ import annotations

import os.path
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from shlex import quote
from typing import Any, cast

import polars as pl

from trace_export.choices import RunChoice
from trace_export.errors import UsageError
from trace_export.model import INT, Note, Profile
from trace_export.schedules.passes import FORWARDS
from trace_export.selection import Numbers
from trace_export.sources.shared.names import WINDOW_FOLDER
from trace_export.units import EPOCH_NS, duration, utc

SAME_HOST_NS = 60 * 10**9
"""Recordings on one clock that lie further apart are of one run only if a process has both: nothing of one shows in the
other."""
OTHER_HOST_NS = 600 * 10**9
"""The same on two clocks, which may be minutes apart if nobody sets them."""
ONE_START_NS = 10**9
"""The recordings of one process name its start alike within this."""
NOT_RECORDED = {"assumed", "inferred"}
"""Numbers of ranks with these origins do not show that two processes are the same rank."""
SHOWN = 4
"""This many other runs are named in a note."""

_NUMBER = re.compile(
    r"(?<![a-z])(?P<place>(rank|stage|pp|tp|dp|cp|ep|gpu|device|node|host|worker|replica)[_-]?(\d+))|\d+",
    re.IGNORECASE,
)
"""A number in a file's name; `place` where it counts parts of a job and no windows."""
_MACHINE = re.compile(
    r"^rank[-_]?\d+$|machine|node|host|server|worker|trainer|pod|instance|(?:vm|ip|gpu|npu|dgx|hgx)[-_]?\d|\d+\.\d+\.\d+\.\d+",
    re.IGNORECASE,
)
"""In the name of a folder of one machine."""
_CAPTURE = re.compile(r"_\d{17}(?:_|$)")
"""In the name of a folder that a profiler made for one recording: when it began, in 17 digits."""

Identity = tuple[object, ...]
Rank = tuple[int, int | None]
"""The number of a rank, and its stage where that is recorded and the number is not."""


@dataclass(eq=False)
class Recording:
    """What one source holds of one run, as the source counts its runs (`counted`; `alone`: it has one).

    `part`: the number of its profile among those given. `ranks` of its processes, and `identities`, which their further
    recordings share; `recorded`: the numbers of the ranks are; `place`: what the file's name says of it. `clock`: ""
    where its times are those of a wall clock, else the host; None where it has no times. `steps`: the first and the
    last that are recorded. `job`: what its environment calls the start of the job. `forwards`: those of a rank in a
    whole step, where the host is known by no more than a folder's name and steps have numbers. `run` and `window`: the
    result, from 1."""

    part: int
    counted: int | None
    alone: bool
    path: Path
    kind: str
    host: str
    ranks: frozenset[Rank]
    recorded: bool
    place: dict[str, int]
    identities: frozenset[Identity]
    begun_ns: int | None
    start_ns: int
    end_ns: int
    clock: str | None
    steps: tuple[int, int] | None
    world: int | None
    job: str | None = None
    forwards: int | None = None
    run: int = 0
    window: int = 1


MOST_STEPS = 1_000_000_000
"""A run has at most this many steps; more are numbers that are far apart."""


@dataclass(frozen=True)
class JobRun:
    """One run: its `number` (1 is the oldest), its recordings by time, how many ranks it has and should have, and which
    are `missing`."""

    number: int
    recordings: tuple[Recording, ...]
    size: int
    world: int
    missing: Numbers

    @property
    def is_complete(self) -> bool:
        return self.size >= self.world

    @property
    def start_ns(self) -> int:
        return min(one.start_ns for one in self.recordings)

    @property
    def end_ns(self) -> int:
        return max(one.end_ns for one in self.recordings)

    @property
    def windows(self) -> int:
        return max(one.window for one in self.recordings)

    def row(self, *, read: bool) -> tuple[object, ...]:
        """As `model.RUNS` has it."""
        extents = {one.steps for one in self.recordings}
        steps, after = 0, None
        for first, last in sorted(each for each in extents if each):
            low = first if after is None else max(first, after)
            steps, after = steps + max(last + 1 - low, 0), max(last + 1, low)
        start = self.start_ns if self.start_ns >= EPOCH_NS else None
        counted = None if None in extents or steps > MOST_STEPS else steps
        return (self.number, start, self.size, self.windows, counted, str(self.missing), read)

    def __str__(self) -> str:
        when = f"{utc(self.start_ns)[:19].replace('T', ' ')} UTC, " if self.start_ns >= EPOCH_NS else ""
        ranks = f"{self.size} rank{'' if self.size == 1 else 's'}"
        return f"run {self.number} ({when}{ranks})"


class _Process:
    """The recordings of one start of one or more processes, by time."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self.recordings = sorted(recordings, key=lambda one: (one.start_ns, one.end_ns))
        self.ranks = {rank for one in recordings for rank in one.ranks}
        self.hosts = {one.host for one in recordings}
        self.start_ns = min(one.start_ns for one in recordings)
        self.begun_ns = next((one.begun_ns for one in recordings if one.begun_ns is not None), self.start_ns)
        self.end_ns = max(one.end_ns for one in recordings)
        self.recorded = all(one.recorded for one in recordings)
        self.world = max((one.world for one in recordings if one.world), default=None)
        self.job = next((one.job for one in recordings if one.job), None)
        self.folder = recordings[0].path.parent
        self.forwards = max((one.forwards for one in recordings if one.forwards is not None), default=None)

    def claims(self, other: _Process) -> bool:
        """Whether both are the same rank, as far as can be known: assumed numbers may count from 0 on each host, and if
        the names of files say different places in the job, a number that both record is wrong."""
        if self.ranks.isdisjoint(other.ranks):
            return False
        one, two = self.recordings[0].place, other.recordings[0].place
        if any(one[what] != two[what] for what in one.keys() & two.keys()):
            return False
        return (self.recorded and other.recorded) or not self.hosts.isdisjoint(other.hosts)


class _Group:
    """Processes that lie together in time."""

    def __init__(self, processes: Iterable[_Process] = ()) -> None:
        self.processes: list[_Process] = []
        self.end_ns = 0
        self._of_rank: dict[Rank, list[_Process]] = defaultdict(list)
        for process in processes:
            self.add(process)

    def add(self, process: _Process) -> None:
        self.processes.append(process)
        self.end_ns = max(self.end_ns, process.end_ns)
        for rank in process.ranks:
            self._of_rank[rank].append(process)

    def extend(self, group: _Group) -> None:
        for process in group.processes:
            self.add(process)

    def rivals(self, process: _Process) -> list[_Process]:
        """The processes of the group that claim a rank of this one."""
        same = {id(other): other for rank in process.ranks for other in self._of_rank.get(rank, ())}
        return [other for other in same.values() if other.claims(process)]


def recordings_of(parts: Sequence[Profile], offsets: Mapping[str, int] | None = None) -> list[Recording]:
    """The recordings in some profiles, each of one source; a profile without a block has none. `offsets` (host → ns)
    are added to their times."""
    recordings = [one for number, part in enumerate(parts) for one in _of_part(number, part, offsets or {})]
    _count_forwards(recordings, parts)
    return recordings


def arrange(recordings: Sequence[Recording], *, all_ranks: bool = True) -> tuple[JobRun, ...]:
    """The runs that `recordings` belong to, by when they began; each recording is given its run and window.

    `all_ranks`: no ranks were left out on purpose, so that a run which has fewer than the job says is not complete.
    """
    groups = [group.processes for group in _runs(_processes(recordings))]
    groups.sort(key=lambda processes: min(process.begun_ns for process in processes))
    sizes = [sum(len(process.ranks) for process in processes) for processes in groups]
    job_runs = []
    for number, (processes, size) in enumerate(zip(groups, sizes, strict=True), 1):
        in_order = sorted((one for process in processes for one in process.recordings), key=lambda one: one.start_ns)
        for one in in_order:
            one.run = number
        _number_windows(processes)
        world = (max(process.world or 0 for process in processes) if all_ranks else 0) or max(sizes)
        ranks = Numbers.of(rank for process in processes for rank, _ in process.ranks)
        missing = Numbers(((0, world - 1),)).without(ranks) if size < world else Numbers(())
        job_runs.append(JobRun(number, tuple(in_order), size, world, missing))
    if jobs_in(job_runs):  # then the size of one says nothing about another
        stated = [any(one.world for one in run.recordings) for run in job_runs]
        job_runs = [
            run if known else replace(run, missing=Numbers(())) for run, known in zip(job_runs, stated, strict=True)
        ]
    return tuple(job_runs)


def chosen(
    runs: Sequence[JobRun], wanted: RunChoice, labels: Mapping[str, str] | None = None
) -> tuple[tuple[JobRun, ...], list[Note]]:
    """Those of `runs` that are `wanted`, and notes on the others, which call hosts by their `labels`. Raises UsageError
    where there is no such run."""
    if len(runs) < 2 or wanted == "all":
        if isinstance(wanted, int) and runs and wanted != 1:
            raise UsageError(f"there is no run {wanted}", "there is one run only: leave it out", parameter="run")
        return tuple(runs), []
    if isinstance(wanted, int):
        if wanted > len(runs):
            raise UsageError(f"there is no run {wanted}", f"choose from 1 to {len(runs)}, or all", parameter="run")
        return (runs[wanted - 1],), []
    complete = [run for run in runs if run.is_complete]
    most = max(run.size for run in runs)
    run = (complete or [run for run in runs if run.size == most])[-1]
    others = [other for other in runs if other is not run]
    named = ", ".join(map(str, others[-SHOWN:])) + (f" and {len(others) - SHOWN} older" if len(others) > SHOWN else "")
    jobs = jobs_in(runs)
    shown = [*jobs[:SHOWN], f"{len(jobs) - SHOWN} more"] if len(jobs) > SHOWN + 1 else jobs
    several = f"{', '.join(shown[:-1])} and {shown[-1]}" if jobs else ""
    text = f"{run} is read, not {named}"
    parts = [other for other in others if _may_be_one(run, other)]
    if jobs and not parts:
        text = f"{several} hold different jobs: give one of these folders; {text}"
    else:
        text += "; --run N chooses another, --run all takes all"
    if parts:
        text += f"; {_by_offsets(run, parts, labels or {})}"
    notes = [
        Note("runs-not-read", "warning" if jobs or parts else "note", text, str(run.recordings[0].path), len(others))
    ]
    if not complete:
        lacks = f"; {run.missing.named('rank')} missing" if run.missing.ranges else ""
        text = f"no run is complete: {run} is the newest of those with most of the {run.world} ranks{lacks}"
        notes.append(Note("run-incomplete", "warning", text, str(run.recordings[0].path)))
    return (run,), notes


def _may_be_one(run: JobRun, other: JobRun) -> bool:
    """Whether two runs may be one, whose hosts have different times: ranks that together make one job, no host in
    common, and no time, which would show that they are two."""
    both = (*run.recordings, *other.recordings)
    ranks, others = ({rank for one in side.recordings for rank, _ in one.ranks} for side in (run, other))
    hosts = ({one.host for one in side.recordings} for side in (run, other))
    worlds = {one.world for one in both if one.world}
    numbered = all(one.recorded or "rank" in one.place or _is_called_machine(one.host) for one in both)
    whole = worlds or ranks | others == {*range(len(ranks) + len(others))}
    apart = run.end_ns < other.start_ns or other.end_ns < run.start_ns
    fits = numbered and whole and len(worlds) < 2 and ranks.isdisjoint(others)
    return bool(fits and apart and set.isdisjoint(*hosts))


def _by_offsets(run: JobRun, parts: Sequence[JobRun], labels: Mapping[str, str]) -> str:
    """What to do if the runs `parts` are of `run`."""
    moved = {one.host: run.start_ns - part.start_ns for part in parts for one in part.recordings}
    given = [f"--offset {quote(labels.get(host, host))}={round(ns / 1e9):+}s" for host, ns in [*moved.items()][:SHOWN]]
    more = ["the same for the hosts beside them"] if len(moved) > SHOWN else []
    if len(parts) == 1:
        what = f"run {parts[0].number} has other ranks on other hosts: if their clocks are {_apart(run, parts[0])} off"
    else:
        named = ", ".join(str(part.number) for part in parts[:SHOWN])
        what = f"runs {named} have other ranks on other hosts: if only their clocks are off"
    return f"{what}, give {' '.join([*given, *more])}"


def _apart(one: JobRun, other: JobRun) -> str:
    return duration(abs(one.start_ns - other.start_ns))


def jobs_in(runs: Sequence[JobRun]) -> list[str]:
    """The folders of several runs, if each run lies in one of several folders: these hold different jobs."""
    if len(runs) < 2:
        return []
    folders = [{one.path.parent for one in run.recordings} for run in runs]
    common = os.path.commonpath([folder for of_run in folders for folder in of_run])
    tops = [{folder.relative_to(common).parts[:1] for folder in of_run} for of_run in folders]
    if any(len(of_run) != 1 or () in of_run for of_run in tops):
        return []
    names = list(dict.fromkeys(next(iter(of_run))[0] for of_run in tops))
    made = any(WINDOW_FOLDER.fullmatch(name) or _CAPTURE.search(name) for name in names)
    return names if len(names) > 1 and not made else []


def _of_part(number: int, part: Profile, offsets: Mapping[str, int]) -> list[Recording]:
    """The recordings of one source. One that counts no runs has one run."""
    spans = part.spans
    if spans.is_empty() or part.ranks.is_empty():
        return []
    first, last = spans["run"].min(), spans["run"].max()
    if first == last:
        return [_recording(number, part, first, spans, None, offsets)]
    blocks = spans.partition_by("run", maintain_order=True, as_dict=True)
    return [
        _recording(number, part, run, blocks[run,], set(blocks[run,]["rank"]), offsets) for (run,) in sorted(blocks)
    ]


def identities(part: Profile) -> dict[int, Identity]:
    """A name for the process of each rank of a source, the same in all of its recordings: its number on its host, or,
    if that is not recorded, the source without the parts that tell windows apart."""
    columns = (part.ranks[column].to_list() for column in ("rank", "host", "pid", "stage", "source"))
    return {
        rank: (host, _without_window(source or "")[0], rank, stage) if pid is None else (host, pid, rank)
        for rank, host, pid, stage, source in zip(*columns, strict=True)
    }


def _recording(
    number: int, part: Profile, counted: Any, spans: pl.DataFrame, chosen: set[int] | None, offsets: Mapping[str, int]
) -> Recording:
    """The recording of the blocks `spans`; `chosen`: their ranks, where the source has others too."""
    ranks = part.ranks
    stages, origins = ranks["stage"].to_list(), ranks["rank_origin"].to_list()
    names = identities(part)
    rows = [row for row in zip(names, stages, origins, strict=True) if chosen is None or row[0] in chosen]
    source = ranks["source"][0] or ""
    start, end, first, last = cast(
        "tuple[int | None, ...]",
        (spans["start_ns"].min(), spans["end_ns"].max(), spans["step"].min(), spans["step"].max()),
    )
    host, begun = str(ranks["host"][0]), ranks["begun_ns"][0]
    moved = offsets.get(host, 0)
    return Recording(
        number, counted, chosen is None, Path(source), str(ranks["kind"][0]), host,
        ranks=frozenset((rank, stage if origin in NOT_RECORDED else None) for rank, stage, origin in rows),
        recorded=NOT_RECORDED.isdisjoint(origins),
        place=_without_window(source)[1],
        identities=frozenset((counted, *names[rank]) for rank, *_ in rows),
        begun_ns=None if begun is None else begun + moved,
        start_ns=(start or 0) + moved, end_ns=(end or 0) + moved,
        clock=None if start is None else _clock(part, host, start + moved),
        steps=None if first is None or last is None else (first, last), world=part.declared.world,
        job=ranks["job"][0],
    )  # fmt: skip


def _is_folder(host: str, folder: Path) -> bool:
    """Whether a host is nothing but a folder."""
    return f"{folder.as_posix()}/".endswith(f"/{host}/")


def _count_forwards(recordings: Sequence[Recording], parts: Sequence[Profile]) -> None:
    """Gives the recordings, of all parts at once, their `forwards`: the most of a rank in a step before its last one,
    which may be cut; none where the folder is called a machine and it is not the same number in several steps."""
    asked = [one for one in recordings if _is_folder(one.host, one.path.parent)]
    spans = {number: parts[number].spans for number in {one.part for one in asked}}
    forwards = [
        rows.lazy()
        .filter(FORWARDS)
        .select(pl.lit(number, INT).alias("part"), "run", "rank", "step", "start_ns", "end_ns")
        for number, rows in spans.items()
        if not rows["step"].null_count()
    ]
    if not forwards:
        return
    # Lines that were written twice are one forward.
    counts = pl.concat(forwards).unique().group_by("part", "run", "rank", "step").len().filter(
        pl.col("step") < pl.col("step").max().over("part", "run", "rank")
    ).group_by("part", "run").agg(
        pl.col("len").max(), several=(pl.col("step").n_unique() > 1) & (pl.col("len").n_unique() == 1)
    ).collect()  # fmt: skip
    most = {(part, run): (number, several) for part, run, number, several in counts.iter_rows()}
    for one in asked:
        number, several = most.get((one.part, one.counted), (None, False))
        one.forwards = number if several or not _is_called_machine(one.host) else None


def _is_called_machine(folder: str) -> bool:
    return _MACHINE.search(folder.partition("/")[0]) is not None


def _clock(part: Profile, host: str, start_ns: int) -> str:
    return host if start_ns < EPOCH_NS or part.hosts["epoch"].count() else ""


@lru_cache(maxsize=1 << 16)
def _without_window(source: str) -> tuple[str, dict[str, int]]:
    """The path without the numbers that may be those of a window, so that the windows of one process share it; and the
    place in the job by its name: {"rank": 3}."""
    folder, _, file = source.rpartition("/")
    name = _NUMBER.sub(lambda match: match["place"] or "0", file)
    while WINDOW_FOLDER.fullmatch(folder.rpartition("/")[2]):
        folder = folder.rpartition("/")[0]
    place = {match[2].lower(): int(match[3]) for match in _NUMBER.finditer(file) if match["place"]}
    return f"{folder}/{name}", place


def _processes(recordings: Sequence[Recording]) -> list[_Process]:
    """The recordings by the start of the process that they are of."""
    joined = _Joined(len(recordings))
    alike: dict[Identity, list[int]] = defaultdict(list)
    for number, one in enumerate(recordings):
        for identity in one.identities:
            alike[identity].append(number)
    for members in alike.values():
        members.sort(key=lambda number: recordings[number].start_ns)
        for before, after in pairwise(members):
            if _goes_on(recordings[before], recordings[after]):
                joined.join(before, after)
    return [_Process([recordings[number] for number in group]) for group in joined.groups()]


def _goes_on(before: Recording, after: Recording) -> bool:
    """Whether a process that both recordings name was not started anew between them: its steps go on, and it says that
    it began at the same time. Where both say which start of the job they are of, that says it."""
    if before.job is not None and after.job is not None and before.job != after.job:
        return False
    if before.begun_ns is not None and after.begun_ns is not None:
        return abs(before.begun_ns - after.begun_ns) <= ONE_START_NS
    if before.end_ns > after.start_ns or before.steps is None or after.steps is None:
        return True
    return before.steps[1] < after.steps[0]


def _runs(processes: Sequence[_Process]) -> list[_Group]:
    """The processes by run, the oldest first. If processes name the start of their job, different starts are different
    runs, and processes of one start and different ranks are one run, however far apart in time."""
    of_job: dict[str | None, list[_Process]] = defaultdict(list)
    for process in processes:
        of_job[process.job].append(process)
    if set(of_job) <= {None}:
        return _by_clock(processes)
    if len(of_job) == 2 and None in of_job:  # those that do not say are as likely of the one start that is named
        of_job = {None: list(processes)}
    all_groups: list[_Group] = []
    for job, of_start in of_job.items():
        groups = _by_clock(of_start)
        for group in groups:
            before = all_groups[-1] if job is not None and group is not groups[0] else None
            if before is not None and not any(map(before.rivals, group.processes)):
                before.extend(group)
            else:
                all_groups.append(group)
    return sorted(all_groups, key=lambda group: min(process.start_ns for process in group.processes))


def _by_clock(processes: Sequence[_Process]) -> list[_Group]:
    """The processes by run, the oldest first, as their times and ranks show them."""
    of_clock: dict[str | None, list[_Process]] = defaultdict(list)
    for process in processes:
        of_clock[process.recordings[0].clock].append(process)
    runs: list[_Group] = []
    for clock in sorted(of_clock, key=lambda clock: (clock is None, clock)):  # "" is the wall clock, None no time
        groups = _in_turn(of_clock[clock]) or _by_time(of_clock[clock])
        if clock is None:
            groups = [_Group(of_clock[clock])]
        for back, group in enumerate(reversed(groups), 1):  # on clocks of their own the newest are of one run
            near = runs[-back] if back <= len(runs) else None
            if near is not None and (clock is None or not any(map(near.rivals, group.processes))):
                near.extend(group)
            else:
                runs.insert(max(len(runs) - back + 1, 0), group)
    return runs


def _in_turn(processes: Sequence[_Process]) -> list[_Group] | None:
    """The n-th process of each rank, if all ranks have equally many, and the n-th ones start closer together than any
    rank is started again, even if the clocks of hosts are far apart."""
    of_ranks: dict[frozenset[Rank], list[_Process]] = defaultdict(list)
    for process in _by_start(processes):
        in_turn = of_ranks[frozenset(process.ranks)]
        if not process.recorded or (in_turn and not in_turn[-1].claims(process)):
            return None
        in_turn.append(process)
    counts = {len(in_turn) for in_turn in of_ranks.values()}
    ranks = [rank for in_turn in of_ranks for rank in in_turn]
    if len(counts) != 1 or counts == {1} or len(set(ranks)) < len(ranks):
        return None
    runs = list(zip(*of_ranks.values(), strict=True))
    spread = max(run[-1].start_ns - run[0].start_ns for run in map(_by_start, runs))
    again = min(b.start_ns - a.end_ns for in_turn in of_ranks.values() for a, b in pairwise(in_turn))
    return [_Group(run) for run in runs] if spread < again else None


def _by_start(processes: Iterable[_Process]) -> list[_Process]:
    return sorted(processes, key=lambda one: (one.start_ns, one.end_ns))


def _by_time(processes: Sequence[_Process]) -> list[_Group]:
    """Groups of processes that are close in time and of different ranks."""
    runs: list[_Group] = []
    for cluster in _clusters(processes):
        for group in _jobs_at_once(cluster):
            if runs and _belongs(runs[-1], group):
                runs[-1].extend(group)
            else:
                runs.append(group)
    return runs


def _clusters(processes: Sequence[_Process]) -> list[_Group]:
    """Processes whose recordings overlap, or are bridged by others that do; by time. A rank that is started again while
    another one still runs begins the next cluster."""
    clusters: list[_Group] = []
    for process in _by_start(processes):
        near = bool(clusters) and process.start_ns <= clusters[-1].end_ns
        if near and all(rival.end_ns > process.start_ns for rival in clusters[-1].rivals(process)):
            clusters[-1].add(process)
        else:
            clusters.append(_Group([process]))
    return clusters


def _jobs_at_once(cluster: _Group) -> list[_Group]:
    """The cluster; if ranks of one format occur twice, each folder, or each file of several ranks, is a job for itself,
    and these jobs run at the same time. So it is where folders that may hold jobs, or machines, have other numbers of
    micro-batches than each other."""
    of_job: dict[str, list[_Process]] = defaultdict(list)
    for folder, process in zip(_folders_of_jobs(cluster.processes, machines=True), cluster.processes, strict=False):
        of_job[folder].append(process)
    if _differ(*of_job.values()):
        return [_Group(processes) for processes in of_job.values()]
    twice = any(len(cluster.rivals(process)) > 1 for process in cluster.processes)  # itself and another
    if not twice or len({one.kind for process in cluster.processes for one in process.recordings}) > 1:
        return [cluster]
    common = os.path.commonpath([process.folder for process in cluster.processes])
    of_folder: dict[tuple[str, ...], _Group] = defaultdict(_Group)
    for process in cluster.processes:
        of_folder[process.recordings[0].path.relative_to(common).parts[:1]].add(process)
    groups = list(of_folder.values())
    apart = all(
        sum(len(process.ranks) for process in group.processes) > 1
        and not any(len(group.rivals(process)) > 1 for process in group.processes)
        for group in groups
    )
    return groups if len(groups) > 1 and apart else [cluster]


def _differ(*of_jobs: Sequence[_Process]) -> bool:
    """Whether a rank has other numbers of forwards in a step of one job than of another."""
    most = (max((p.forwards for p in of_one if p.forwards is not None), default=None) for of_one in of_jobs)
    return len({*most} - {None}) > 1


def _folders_of_jobs(processes: Sequence[_Process], *, machines: bool = False) -> list[str]:
    """The folder of each process, where each folder may hold a job for itself: they stand for hosts and are not called
    so (unless `machines` count), and the ranks of some are counted by them. Empty elsewhere."""
    if all(process.recorded for process in processes):
        return []
    hosts = [process.recordings[0].host for process in processes]
    if not all(_is_folder(host, process.folder) for host, process in zip(hosts, processes, strict=True)):
        return []
    common = os.path.commonpath([process.folder for process in processes])
    folders = ["/".join(process.folder.relative_to(common).parts[:1]) for process in processes]
    called = not machines and any(map(_is_called_machine, (*hosts, *folders)))
    return [] if called or "" in folders else folders


def _belongs(run: _Group, group: _Group) -> bool:
    """Whether a group of processes that begins after a run had ended is still of it: other ranks of a job of the same
    size, close in time."""
    if any(run.rivals(process) for process in group.processes):
        return False
    unlike = _differ(run.processes, group.processes)
    folders = _folders_of_jobs([*run.processes, *group.processes], machines=unlike)
    if folders and set(folders[: len(run.processes)]).isdisjoint(folders[len(run.processes) :]):
        return False
    before, after = run.processes, group.processes
    elsewhere = {process.folder for process in before}.isdisjoint(process.folder for process in after)
    if elsewhere and {process.recorded for process in before}.isdisjoint(process.recorded for process in after):
        return False  # all profiles of a job name their ranks, or none does
    worlds = {process.world for process in (*run.processes, *group.processes) if process.world}
    hosts = [{host for process in side.processes for host in process.hosts} for side in (run, group)]
    gap = min(process.start_ns for process in group.processes) - run.end_ns
    return len(worlds) < 2 and gap <= (OTHER_HOST_NS if hosts[0].isdisjoint(hosts[1]) else SAME_HOST_NS)


def _number_windows(processes: Sequence[_Process]) -> None:
    """Gives the recordings of a run their windows: by the steps that they record, else by their turn where all
    processes have equally many, else by time."""
    recordings = [one for process in processes for one in process.recordings]
    if len(recordings) == len(processes):
        return
    if all(one.steps for one in recordings):
        _number_by(recordings, [one.steps for one in recordings if one.steps])
        return
    for process in processes:
        _number_by(process.recordings, [(one.start_ns, one.end_ns - 1) for one in process.recordings])
    if len({max(one.window for one in process.recordings) for process in processes}) > 1:
        _number_by(recordings, [(one.start_ns, one.end_ns - 1) for one in recordings])


def _number_by(recordings: Sequence[Recording], extents: Sequence[tuple[int, int]]) -> None:
    """Numbers the groups of recordings whose extents (the first and the last number) overlap, in their order."""
    number, reached = 0, None
    for (first, last), one in sorted(zip(extents, recordings, strict=True), key=lambda pair: pair[0]):
        if reached is None or first > reached:
            number, reached = number + 1, last
        reached = max(reached, last)
        one.window = number


class _Joined:
    """Places that are joined into groups."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def join(self, one: int, other: int) -> None:
        self._above[self._top(one)] = self._top(other)

    def groups(self) -> list[list[int]]:
        tops = sorted(range(len(self._above)), key=self._top)
        return [list(group) for _, group in groupby(tops, key=self._top)]

    def _top(self, member: int) -> int:
        while self._above[member] != member:
            self._above[member] = self._above[self._above[member]]
            member = self._above[member]
        return member
