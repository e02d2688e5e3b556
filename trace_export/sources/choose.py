"""Select the sources that the user asked for, and word the errors where there are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from trace_export.errors import NothingToExportError, SourceError, TraceExportError, UsageError, path_text
from trace_export.model import INT, Note, Profile
from trace_export.selection import Numbers
from trace_export.sources.folders import SearchResult
from trace_export.sources.formats import commands, of_command, of_kind
from trace_export.sources.shared.local_ranks import local_ranks
from trace_export.sources.source import Source

NAMED_REASONS = 3
"""An error names one file that is not a source for each of at most this many reasons."""
NAMED_HOSTS = 4
SEE = "see what is there with trace-export inspect"
MARK = "mark the passes (trace-export docs lists the guides), or say which ranges are passes with `markers` 'REGEX=>F'"


def choose(
    searched: SearchResult,
    log_dir: Path,
    *,
    family: str | None = None,
    devices: Numbers | None = None,
    ranks: Numbers | None = None,
    multi_machine: bool = False,
) -> tuple[list[Source], list[TraceExportError], tuple[Note, ...]]:
    """The sources asked for, for each host an error that names its missing devices, and a note on inferred ones.

    Sources whose position on their host is known only after reading are kept; `on_devices` filters them.
    Raises UsageError for an unknown family, NothingToExportError when there should be a folder for each machine and is
    none.
    """
    chosen = _of_family(searched, family)
    if multi_machine and all(s.path.parent == log_dir for s in chosen):
        what = f"{log_dir}: `multi_machine` was given, but no machine folder holds a profile"
        remedy = "put the profiles of each machine into machine0, machine1, …, or leave the option out"
        raise NothingToExportError(what, remedy)
    if ranks is not None:
        chosen = [s for s in chosen if s.rank is None or s.rank in ranks]
    if devices is None:
        return chosen, [], ()
    there: dict[str, list[int]] = {}
    inferred: dict[str, list[int]] = {}
    for source in chosen:
        if source.local_rank is not None:
            there.setdefault(source.host, []).append(source.local_rank)
        if source.local_rank is not None and source.local_rank_origin == "inferred":
            inferred.setdefault(source.host, []).append(source.local_rank)
    missing = _missing(log_dir, devices, there)
    kept = [s for s in chosen if s.local_rank is None or s.local_rank in devices]
    return kept, missing, _with_gaps(log_dir, inferred)


def on_devices(
    profile: Profile, log_dir: Path, devices: Numbers, chosen: Iterable[Source]
) -> tuple[Profile, list[TraceExportError]]:
    """Only the ranks on one of the `devices` of their host (`local_ranks`), and for each host an error that names the
    devices without a rank. Ranks of the sources among `chosen` whose place on their host was known before stay as they
    are."""
    open_sources = pl.Series([path_text(s.path) for s in chosen if s.local_rank is None], dtype=pl.String)
    undecided = pl.col("source").is_in(open_sources.implode())
    numbers = local_ranks(profile.ranks["host"].to_list(), profile.ranks["rank"].to_list())
    counted = profile.ranks.with_columns(device_of_host=pl.Series(numbers, dtype=INT))
    kept = counted.filter(~undecided | devices.holds("device_of_host")).drop("device_of_host")
    tables = {
        name: getattr(profile, name).join(kept, on="rank", how="semi", maintain_order="left")
        for name in ("spans", "p2p", "collectives", "counters")
    }
    there = dict(counted.filter(undecided).group_by("host").agg("device_of_host").sort("host").iter_rows())
    missing = _missing(log_dir, devices, there)
    return replace(profile, ranks=kept, **tables).with_notes(_with_gaps(log_dir, there)), missing


def _with_gaps(log_dir: Path, ranks_of: Mapping[str, list[int]]) -> tuple[Note, ...]:
    """A note on the hosts that lack one of their first ranks (host → local ranks): only their numbers say that lower
    ones exist."""
    hosts = sorted(host for host, numbers in ranks_of.items() if len(numbers) <= max(numbers))
    if not hosts:
        return ()
    text = f"devices of {hosts[0]} are numbered as its ranks are; lower ones were not recorded"
    return (Note("devices-inferred", "note", text, str(log_dir), len(hosts)),)


def nothing_found(
    searched: SearchResult,
    log_dir: Path,
    files: Sequence[Path] = (),
    *,
    family: str | None = None,
    ranks: Numbers | None = None,
) -> TraceExportError:
    """Why a folder without a source, or without one of the ranks asked for, cannot be exported; if there are `files`,
    only these were looked at."""
    if ranks is not None and (of_family := _of_family(searched, family)):
        numbers = Numbers.of(source.rank for source in of_family if source.rank is not None)
        return no_rank(files[0] if len(files) == 1 else log_dir, ranks, f"choose from {numbers.named('rank')}")
    others, sure = _unrecognised(searched, {"", *(row.kind for row in of_command(family))})
    names = ", ".join(row.files for row in of_command(family)) if family else f"profiles of {', '.join(commands())}"
    looked_for = "" if sure else f"looked for {names}"
    linked = sum(note.count for note in searched.notes if note.code == "links-not-followed")
    links = f"to search the folders to which links here lead, give `follow_links` ({linked})" if linked else ""
    page = family or ("NAME" if looked_for else "")
    guide = f"{f'trace-export docs {page}'.rstrip()} says how to collect one"
    there = sorted({of_kind(source.kind).command for source in searched.sources})
    instead = f"to draw the profiles of {', '.join(there)} here, leave out `family`" if family and there else ""
    said = filter(None, (*others, looked_for, instead, links, guide))
    return NothingToExportError(_no_profile(log_dir, files, family), "; ".join(said))


def _no_profile(log_dir: Path, files: Sequence[Path], family: str | None) -> str:
    if not files:
        return f"{log_dir}: no {f'{family} ' if family else ''}profile in this folder"
    what = f"a profile{f' of {family}' if family else ''}"
    if len(files) == 1:
        return f"{files[0]}: this file is not {what}"
    return f"{log_dir}: none of the {len(files)} files that were given is {what}"


def no_rank(log_dir: Path, ranks: Numbers, remedy: str = SEE) -> TraceExportError:
    return NothingToExportError(f"{log_dir}: no source holds a rank of `ranks` {ranks}", remedy)


def no_device(log_dir: Path, devices: Numbers) -> TraceExportError:
    return NothingToExportError(f"{log_dir}: no host has a device {devices}", SEE)


def _of_family(searched: SearchResult, family: str | None) -> list[Source]:
    kinds = {row.kind for row in of_command(family)}
    if not kinds:
        raise UsageError(f'there is no format "{family}"', f"choose one of {', '.join(commands())}")
    return [s for s in searched.sources if s.kind in kinds]


def _unrecognised(searched: SearchResult, kinds: set[str]) -> tuple[list[str], bool]:
    """A clause for each of the first reasons why files that look like a source are not one, and whether it is known
    what these files are; then only they are named."""
    files = [file for file in searched.unrecognised if file.kind in kinds]
    sure = [file for file in files if file.sure]
    alike: dict[str, dict[str, None]] = {}  # the paths, each once
    for file in sure or files:
        alike.setdefault(file.what, {})[file.path] = None
    clauses = [
        f"{next(iter(paths))} is {what}" + (f" ({len(paths) - 1} more like it)" if len(paths) > 1 else "")
        for what, paths in [*alike.items()][:NAMED_REASONS]
    ]
    more = sum(len(paths) for paths in list(alike.values())[NAMED_REASONS:])
    return [*clauses, *([f"{more} more files are not profiles either"] if more else [])], bool(sure)


def _missing(log_dir: Path, devices: Numbers, there: Mapping[str, Iterable[int]]) -> list[TraceExportError]:
    """An error for the hosts that lack the same of the `devices`, of those that each has. Its length grows neither with
    their number nor with that of the hosts."""
    lacking: dict[tuple[str, str], list[str]] = {}
    for host in sorted(there):
        has = Numbers.of(there[host])
        if (lacks := devices.without(has)).ranges:
            lacking.setdefault((str(lacks), str(has)), []).append(host)
    errors: list[TraceExportError] = []
    for (absent, present), hosts in lacking.items():
        number = "device" if absent.isdecimal() else "devices"
        others = f" and {len(hosts) - NAMED_HOSTS} more hosts" if len(hosts) > NAMED_HOSTS else ""
        what = f"no profile of {number} {absent} of {', '.join(hosts[:NAMED_HOSTS])}{others}"
        errors.append(SourceError(log_dir, what, f"choose from devices {present}"))
    return errors
