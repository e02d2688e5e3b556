"""Several profiles → one: ranks get their global numbers, hosts that are the same become one."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_export.errors import SourceError
from trace_export.model import INT, Note, Profile, concat
from trace_export.sources import windows
from trace_export.sources.formats import of_kind
from trace_export.sources.shared.names import rank_in
from trace_export.units import finer_than_ms

RANK_COLUMNS = {
    "ranks": ["rank"], "spans": ["rank"], "p2p": ["rank"], "members": ["rank"], "collectives": ["rank"],
    "counters": ["rank"], "messages": ["src_rank", "dst_rank"],
}  # fmt: skip


def merge(profiles: Iterable[Profile]) -> tuple[Profile, list[SourceError]]:
    """All profiles as one, and an error for each that repeats a recorded rank of an earlier one. Of files with the same
    content the first counts where they have the same ranks or lie in one folder; of windows of one rank the last.

    An assumed number that is recorded for another rank becomes the next free one, in the order given.
    """
    given = list(profiles)
    older = windows.superseded(given)
    left_out = set(map(id, older))
    parts = [(profile, *_ranks(profile)) for profile in given if id(profile) not in left_out]
    taken = {rank for _, recorded, _ in parts for rank in recorded}
    kept: list[Profile] = []
    refused: list[SourceError] = []
    assumed: list[Note] = []
    copies: list[Note] = []
    alike: dict[tuple[object, ...], Profile] = {}
    owner: dict[int, Profile] = {}
    last_free: dict[int, int] = {}
    for part, recorded, numbered in parts:
        originals = [alike.setdefault(claim, part) for claim in _claims(part)]
        original = next((o for o in originals if o is not part and _same_file(part, o)), None)
        if original is not None:
            copies.append(_copy(part, original))
            continue
        twice = next((rank for rank in recorded if rank in owner), None)
        if twice is not None:
            refused.append(_refusal(part, twice, owner[twice]))
            continue
        numbers = {}
        for rank, path in numbered.items():
            free = last_free.get(rank, rank)
            while free in owner or free in taken:
                free += 1
            owner[free], last_free[rank] = part, free
            if free != rank:
                numbers[rank] = free
            if free not in map(rank_in, Path(path).parts):
                text = "rank numbers assumed from the order of files and processes"
                assumed.append(Note("rank-numbers-assumed", "note", text, path))
        owner |= dict.fromkeys(recorded, part)
        kept.append(_renumbered(part, numbers) if numbers else part)
    whole = concat(kept).with_notes([*copies, *windows.superseded_note(older), *windows.one_after_another(kept)])
    if assumed:
        whole = whole.with_notes([replace(assumed[0], count=len(assumed))])
    return _by_label(replace(whole, hosts=_hosts(whole.hosts))), refused


def _claims(part: Profile) -> list[tuple[object, ...]]:
    """What two recordings of the same blocks have in common: the ranks, or the folder, where no two processes have
    exactly the same times. Files of other folders that are numbered as other ranks are such, whatever they hold."""
    start, end = part.spans["start_ns"], part.spans["end_ns"]
    times = (part.spans.height, start.sum(), end.sum())
    claims: list[tuple[object, ...]] = [(*part.ranks["rank"], *times)]
    if finer_than_ms(start).any() or finer_than_ms(end).any():
        claims.append((Path(str(part.ranks["source"].first())).parent, *times))
    return claims


def _same_file(part: Profile, original: Profile) -> bool:
    """Whether two sources that claim the same are files with the same bytes."""
    one, other = (Path(str(p.ranks["source"].first())) for p in (part, original))
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def _copy(part: Profile, original: Profile) -> Note:
    path, other = (str(p.ranks["source"].first()) for p in (part, original))
    text = f"the same recording as {other}, which counts once"
    return Note("source-recorded-twice", "warning", text, path)


def _refusal(part: Profile, rank: int, kept: Profile) -> SourceError:
    path, other = (_ranks(p)[0][rank] for p in (part, kept))
    one, two = (of_kind(str(p.ranks["kind"].first())).command for p in (kept, part))
    formats = f"choose a format: trace-export {one} --log_dir DIR, or trace-export {two}"
    hint = "keep only one of them in the folder" if one == two else formats
    return SourceError(Path(path), f"holds rank {rank}, which {other} holds too", hint)


def _ranks(profile: Profile) -> tuple[dict[int, str], dict[int, str]]:
    """Rank → source, of the ranks whose number is recorded, and of those whose number is assumed."""
    recorded: dict[int, str] = {}
    numbered: dict[int, str] = {}
    for rank, path, origin in zip(*(profile.ranks[c] for c in ("rank", "source", "rank_origin")), strict=True):
        (numbered if origin == "assumed" else recorded)[rank] = path
    return recorded, numbered


def _renumbered(profile: Profile, numbers: dict[int, int]) -> Profile:
    frames = {
        table: getattr(profile, table).with_columns(pl.col(columns).replace(numbers).cast(INT))
        for table, columns in RANK_COLUMNS.items()
    }
    return replace(profile, **frames)


def _by_label(whole: Profile) -> Profile:
    """Hosts with a unique label are named by it in all tables, since users see and type labels."""
    taken = pl.concat([whole.hosts["label"], whole.hosts.filter(pl.col("label") != pl.col("host"))["host"]])
    alone = whole.hosts.filter(~pl.col("label").is_in(taken.filter(taken.is_duplicated()).implode()))
    names = dict(alone.select("host", "label").drop_nulls().iter_rows())
    called = pl.col("host").replace(names)
    return replace(whole, hosts=whole.hosts.with_columns(called), ranks=whole.ranks.with_columns(called))


def _hosts(hosts: pl.DataFrame) -> pl.DataFrame:
    """One row a host; if hosts share a machine number, all are numbered anew in order of appearance."""
    hosts = hosts.unique("host", keep="first", maintain_order=True)
    if hosts["machine"].is_duplicated().any() or hosts["machine"].null_count():
        hosts = hosts.with_columns(machine=pl.int_range(pl.len(), dtype=INT))
    return hosts
