"""Several profiles → one, of the run that is wanted: ranks get their global numbers, hosts that are the same become
one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_export.choices import RunChoice
from trace_export.errors import SourceError
from trace_export.files import PACKED
from trace_export.model import INT, RECORDINGS, RUNS, SEGMENT, Note, Profile, concat, conform
from trace_export.segments import cut
from trace_export.selection import offsets_by_host
from trace_export.sources import runs
from trace_export.sources.formats import of_kind
from trace_export.sources.runs import JobRun, Recording
from trace_export.sources.shared.names import rank_in
from trace_export.sources.shared.restarts import with_runs
from trace_export.units import finer_than_ms

PIECE_BYTES = 1 << 20
RANK_COLUMNS = {
    "ranks": ["rank"], "spans": ["rank"], "p2p": ["rank"], "members": ["rank"], "collectives": ["rank"],
    "counters": ["rank"], "messages": ["src_rank", "dst_rank"],
}  # fmt: skip


def merge(
    profiles: Iterable[Profile],
    run: RunChoice = "latest",
    *,
    all_ranks: bool = True,
    offsets: Mapping[str, int] | None = None,
) -> tuple[Profile, list[SourceError]]:
    """The profiles of the wanted `run` as one, and an error for each profile that repeats a recorded rank of an earlier
    one in its window. Of files with the same content and the same ranks, or in one folder, the first counts.
    `all_ranks`: no ranks were left out on purpose. By times of hosts that are moved by `offsets` (host → ns) runs are
    told apart; the tables keep the recorded times.

    An assumed number that is recorded for another rank becomes the next free one, in the order given. Raises UsageError
    where there is no such run or host.
    """
    each = [part for profile in profiles for part in (*profile.earlier, replace(profile, earlier=()))]
    given, copies = _without_copies(each)
    given = [with_runs(part) for part in given]
    moved = offsets_by_host(given, offsets or {})
    job_runs = runs.arrange(runs.recordings_of(given, moved), all_ranks=all_ranks)
    wanted, notes = runs.chosen(job_runs, run, _labels(given) if len(job_runs) > 1 else {})
    read = {recording.part for one in job_runs for recording in one.recordings}
    chosen = {recording.part for one in wanted for recording in one.recordings}
    numbers = _Numbers([part for number, part in enumerate(given) if number in chosen or number not in read])
    several_jobs = bool(runs.jobs_in(job_runs))
    least = _least(given) if several_jobs else {}
    kept = [
        _labelled(part, one if len(job_runs) > 1 else None, window)
        for one in wanted
        for window, parts in _windows(one, given)
        for part in numbers.of_window(_as_alone(parts, least))
    ]
    empty = [part for number, part in enumerate(given) if number not in read]
    kept += [Profile(notes=part.notes) for part in empty] if several_jobs else numbers.without_blocks(empty)
    several = len(wanted) > 1 or any(one.windows > 1 for one in wanted)
    whole = concat(kept)
    whole = replace(whole, notes=tuple(dict.fromkeys(whole.notes)))  # what a source says of all that it holds
    whole = _with_recordings(whole, kept, several=several)
    rows = [one.row(read=one in wanted) for one in job_runs]
    whole = replace(whole, runs=pl.DataFrame(rows, RUNS, orient="row"))
    whole = whole.with_notes([*copies, *notes, *_one_after_another(wanted), *numbers.notes()])
    return _by_label(replace(whole, hosts=_hosts(whole.hosts))), numbers.refused


def _windows(run: JobRun, given: Sequence[Profile]) -> Iterator[tuple[int | None, list[Profile]]]:
    """The windows of a run by number, None where it has one only, and the profiles of each, in the order given."""
    for number in range(1, run.windows + 1):
        recordings = sorted((one for one in run.recordings if one.window == number), key=lambda one: one.part)
        yield number if run.windows > 1 else None, [_of_recording(given[one.part], one) for one in recordings]


def _least(given: Sequence[Profile]) -> dict[str, int]:
    """The least assumed number of the files of each name."""
    numbered = pl.concat([part.ranks for part in given]).filter(rank_origin="assumed")
    names = numbered.select("rank", name=pl.col("source").str.split("/").list.last())
    return dict(names.group_by("name").agg(pl.col("rank").min()).iter_rows())


def _as_alone(parts: list[Profile], least: Mapping[str, int]) -> list[Profile]:
    """The profiles of a job that lies beside others (`least`, see `_least`), with the numbers that they would have
    without the others, whose folders were counted as machines of one job."""
    assumed = [(rank, Path(path).name) for part in parts for rank, path in _ranks(part)[1].items()]
    if not least or len(assumed) < sum(part.ranks.height for part in parts):
        return parts
    further = min(rank for rank, _ in assumed) - min(least[name] for _, name in assumed) if assumed else 0
    return [_renumbered(part, {r: r - further for r in part.ranks["rank"]}) for part in parts] if further else parts


def _of_recording(part: Profile, recording: Recording) -> Profile:
    """A profile without the other runs in its source."""
    if recording.alone:
        return part
    return next(piece for piece in cut(part, ["run"]) if piece.spans["run"][0] == recording.counted)


def _labelled(part: Profile, run: JobRun | None, window: int | None) -> Profile:
    """A profile whose blocks say their run, where there are several, and window."""
    columns = {
        name: pl.lit(number, INT)
        for name, number in (("run", run and run.number), ("window", window))
        if number is not None
    }
    return replace(part, spans=part.spans.with_columns(**columns)) if columns else part


class _Numbers:
    """The numbers of the ranks of all profiles. Recorded ones are kept; assumed ones are alike in all recordings of a
    process, and no two ranks of a window have the same. `refused`: an error for each profile that cannot have one."""

    def __init__(self, given: Sequence[Profile]) -> None:
        self.refused: list[SourceError] = []
        self._ranks = {id(part): _ranks(part) for part in given}
        self._recorded = {rank for recorded, _ in self._ranks.values() for rank in recorded}
        self._known: dict[runs.Identity, int] = {}
        self._assumed: list[Note] = []
        self._owner: dict[int, Profile] = {}
        self._last_free: dict[int, int] = {}

    def of_window(self, parts: Iterable[Profile]) -> Iterator[Profile]:
        """The profiles of one window that have ranks of their own, numbered."""
        self._owner, self._last_free = {}, {}
        for part in parts:
            if (numbered := self._numbered(part)) is not None:
                yield numbered

    def without_blocks(self, parts: Iterable[Profile]) -> Iterator[Profile]:
        """Profiles without a block, of any window. If another profile has their ranks, only their notes count."""
        for part in parts:
            twice = not self._owner.keys().isdisjoint(_ranks(part)[0])
            yield Profile(notes=part.notes) if twice else self._numbered(part) or part

    def notes(self) -> list[Note]:
        return [replace(self._assumed[0], count=len(self._assumed))] if self._assumed else []

    def _numbered(self, part: Profile) -> Profile | None:
        recorded, assumed = self._ranks.get(id(part)) or _ranks(part)
        twice = next((rank for rank in recorded if rank in self._owner), None)
        if twice is not None:
            self.refused.append(_refusal(part, twice, self._owner[twice]))
            return None
        numbers = {}
        names, inferred = (runs.identities(part), _inferred(part)) if assumed else ({}, set())
        for rank, path in assumed.items():
            free = self._known.get(names[rank], self._last_free.get(rank, rank))
            while free in self._owner or free in self._recorded:
                free += 1
            self._owner[free], self._last_free[rank] = part, free
            if free != rank:
                numbers[rank] = free
            if names[rank] not in self._known:
                self._known[names[rank]] = free
                if rank not in inferred and free not in map(rank_in, Path(path).parts):
                    text = "rank numbers assumed from the order of files and processes"
                    self._assumed.append(Note("rank-numbers-assumed", "note", text, path))
        self._owner |= dict.fromkeys(recorded, part)
        return _renumbered(part, numbers) if numbers else part


def _without_copies(given: Sequence[Profile]) -> tuple[list[Profile], list[Note]]:
    """The profiles without those of files that are copies of others, which have no more, and a note on these."""
    alike: dict[tuple[object, ...], Profile] = {}
    copies: dict[int, Profile] = {}
    for part in sorted(given, key=lambda part: -part.spans.height):
        originals = [alike.setdefault(claim, part) for claim in _claims(part)]
        original = next((o for o in originals if o is not part and _same_file(part, o)), None)
        if original is not None:
            copies[id(part)] = original
    kept = [part for part in given if id(part) not in copies]
    pairs = [[str(p.ranks["source"].first()) for p in (part, copies[id(part)])] for part in given if id(part) in copies]
    if not pairs:
        return kept, []
    path, other = pairs[0]
    text = f"the same recording as {other}, which counts once"
    return kept, [Note("source-recorded-twice", "warning", text, path, len(pairs))]


def _with_recordings(whole: Profile, parts: Sequence[Profile], *, several: bool) -> Profile:
    """`whole`, made of these `parts`, of `several` segments or of one, with the table of its recordings; each rank
    once."""
    rows = whole.ranks
    if several:
        labels = [(part.spans.select(SEGMENT).row(0) if part.spans.height else (None, None)) for part in parts]
        of_row = [label for part, label in zip(parts, labels, strict=True) for _ in range(part.ranks.height)]
        rows = rows.hstack(pl.DataFrame(of_row, {"run": INT, "window": INT}, orient="row"))
        whole = replace(
            whole,
            ranks=whole.ranks.unique("rank", keep="first", maintain_order=True),
            members=whole.members.unique(maintain_order=True),
        )
    elif whole.spans.height:
        rows = rows.with_columns(run=pl.lit(whole.spans["run"][0], INT))
    return replace(whole, recordings=conform(rows, RECORDINGS))


def _one_after_another(wanted: Sequence[JobRun]) -> list[Note]:
    """A warning where files of one folder, host and stage whose ranks are assumed were recorded one after the other, as
    windows of one rank are."""
    later: list[Path] = []
    for run in wanted:
        alike: dict[tuple[object, ...], list[Recording]] = {}
        for one in run.recordings:
            if not one.recorded:
                stages = tuple(sorted(str(stage) for _, stage in one.ranks))
                alike.setdefault((one.path.parent, one.host, one.window, stages), []).append(one)
        for files in alike.values():
            first = min(one.end_ns for one in files)
            later += [one.path for one in files if one.clock is not None and one.start_ns > first]
    if not later:
        return []
    text = "drawn as another rank, but recorded after a file beside it had ended: it may be a window of the same rank"
    return [Note("ranks-one-after-another", "warning", text, str(later[0]), len(later))]


def _claims(part: Profile) -> list[tuple[object, ...]]:
    """A key that two recordings of the same blocks share: the ranks, or the folder and the first or the last block,
    because no two processes have exactly the same times. Files of other folders with numbers of other ranks are other
    recordings."""
    start, end = part.spans["start_ns"], part.spans["end_ns"]
    claims: list[tuple[object, ...]] = [(*part.ranks["rank"], part.spans.height, start.sum(), end.sum())]
    if finer_than_ms(start).any() or finer_than_ms(end).any():
        folder = Path(str(part.ranks["source"].first())).parent
        claims += [(folder, place, start[place], end[place]) for place in (0, -1)]
    return claims


def _same_file(part: Profile, original: Profile) -> bool:
    """Whether of two sources that claim the same one is a file that begins or ends with all bytes of the other, or is
    the other packed."""
    one, other = (Path(str(p.ranks["source"].first())) for p in (part, original))
    if not (one.is_file() and other.is_file()):
        return False
    if _unpacked(one) == _unpacked(other):
        return True
    short, long = sorted((one, other), key=lambda path: path.stat().st_size)
    size = short.stat().st_size
    return any(_holds(long, short, size, at) for at in {0, long.stat().st_size - size})


def _holds(file: Path, piece: Path, size: int, at: int) -> bool:
    """Whether the first `size` bytes of `piece` are in `file` at this place."""
    with file.open("rb") as first, piece.open("rb") as second:
        first.seek(at)
        while size and (read := first.read(min(size, PIECE_BYTES))) == second.read(len(read)):
            size -= len(read)
    return not size


def _unpacked(path: Path) -> str:
    """The name of what a packed file holds."""
    return next((path.as_posix().removesuffix(end) for end in PACKED if end and path.name.endswith(end)), str(path))


def _refusal(part: Profile, rank: int, kept: Profile) -> SourceError:
    path, other = (_ranks(p)[0][rank] for p in (part, kept))
    one, two = (of_kind(str(p.ranks["kind"].first())).command for p in (kept, part))
    formats = f"choose a format with `family`: {one} or {two}"
    hint = "keep only one of them in the folder" if one == two else formats
    if one == two and part.ranks["host"].first() != kept.ranks["host"].first():
        hint = f"if each host counts its ranks from 0, correct the ranks in the files; else {hint}"
    return SourceError(Path(path), f"holds rank {rank}, which {other} holds too", hint)


def _ranks(profile: Profile) -> tuple[dict[int, str], dict[int, str]]:
    """Rank → source, of the ranks whose number is recorded, and of those whose number is assumed or inferred."""
    recorded: dict[int, str] = {}
    numbered: dict[int, str] = {}
    for rank, path, origin in zip(*(profile.ranks[c] for c in ("rank", "source", "rank_origin")), strict=True):
        (numbered if origin in ("assumed", "inferred") else recorded)[rank] = path
    return recorded, numbered


def _inferred(profile: Profile) -> set[int]:
    """The ranks whose numbers a reader marked as inferred."""
    ranks = zip(profile.ranks["rank"], profile.ranks["rank_origin"], strict=True)  # a filter takes longer for few rows
    return {rank for rank, origin in ranks if origin == "inferred"}


def _renumbered(profile: Profile, numbers: dict[int, int]) -> Profile:
    frames = {
        table: getattr(profile, table).with_columns(pl.col(columns).replace(numbers).cast(INT))
        for table, columns in RANK_COLUMNS.items()
    }
    return replace(profile, **frames)


def _labels(profiles: Sequence[Profile]) -> dict[str, str]:
    """The label of each host that has one for itself."""
    hosts = pl.concat([profile.hosts for profile in profiles]).unique("host", keep="first", maintain_order=True)
    taken = pl.concat([hosts["label"], hosts.filter(pl.col("label") != pl.col("host"))["host"]])
    alone = hosts.filter(~pl.col("label").is_in(taken.filter(taken.is_duplicated()).implode()))
    return dict(alone.select("host", "label").drop_nulls().iter_rows())


def _by_label(whole: Profile) -> Profile:
    """Hosts with a unique label are named by it in all tables, since users see and type labels."""
    called = pl.col("host").replace(_labels([whole]))
    tables = {name: getattr(whole, name).with_columns(called) for name in ("hosts", "ranks", "recordings")}
    return replace(whole, **tables)


def _hosts(hosts: pl.DataFrame) -> pl.DataFrame:
    """One row a host; if hosts share a machine number, all are numbered anew in order of appearance."""
    hosts = hosts.unique("host", keep="first", maintain_order=True)
    if hosts["machine"].is_duplicated().any() or hosts["machine"].null_count():
        hosts = hosts.with_columns(machine=pl.int_range(pl.len(), dtype=INT))
    return hosts
