"""The metadata of an Ascend profile: which capture it belongs to, and what describes that: sizes of the parallel job,
communication groups, rank → stage.

torch_npu stores the user's metadata as JSON texts in the table META_DATA and in `profiler_metadata.json`; MindSpore has
only the file. Nothing here is needed to read blocks, so whatever is damaged becomes a note.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from trace_export.files import PACKED, read_file
from trace_export.model import Declared, Note
from trace_export.sources.shared.names import job_of

OUTPUT = "ASCEND_PROFILER_OUTPUT"
TRACES = tuple("trace_view.json" + packed for packed in PACKED)
TABLE = "kernel_details.csv"
COMMUNICATION = ("COMMUNICATION", "HCCL")
"""Accelerator Core of the rows of `TABLE` that are communication operators."""
METADATA = "profiler_metadata.json"
"""The facts that the training script added."""

CAPTURE = re.compile(
    r"(?:(?:rank-(?P<rank>\d{1,9})|(?P<host>.+)_(?P<pid>\d{1,10}))_)?(?P<time>\d{8,17})_ascend_(?P<framework>pt|ms)"
)
"""The name of a capture; with a rank that of MindSpore 2.3 and 2.4."""
MSPROF = re.compile(r"msprof_\d{14}\.db")
INFO = re.compile(r"profiler_info(?:_(\d{1,9}))?\.json")


def home_of(folder: Path, files: Iterable[str] = ()) -> Path:
    """The capture that the profile in `folder` belongs to: the folder itself, unless it is one of those inside.
    `files`: the names of those in it that are read; a database of msprof lies among the raw data."""
    if folder.name == OUTPUT or any(MSPROF.fullmatch(name) for name in files):
        return next((p for p in folder.parents if not p.name.startswith("PROF_")), folder.parent)
    return folder


def info_file(home: Path, names: Callable[[Path], Iterable[str]]) -> Path | None:
    """The `profiler_info` of the capture `home`: in it, or as MindSpore 2.3 and 2.4 have it, beside it. `names`: of the
    files in a folder."""
    if inside := next((name for name in names(home) if INFO.fullmatch(name)), None):
        return home / inside
    match = CAPTURE.fullmatch(home.name)
    info = f"profiler_info_{int(match['rank'])}.json" if match and match["rank"] else None
    return home.parent / info if info is not None and info in names(home.parent) else None


def names_in(folder: Path) -> list[str]:
    """The names of all that is in a folder, in order."""
    return sorted(path.name for path in folder.iterdir())


_SIZES = {
    "tp": ("tensor_model_parallel_size", "tp"),
    "pp": ("pipeline_model_parallel_size", "pp"),
    "dp": ("data_parallel_size", "dp"),
    "cp": ("context_parallel_size", "cp"),
}
"""Megatron's long names and the short ones that some launchers write."""

MAX_JSON = 16 << 20
"""Metadata are a few kB, and of a job of 100,000 ranks, whose groups they list, a few MB."""

WORLD = "default_group"
"""The name of the group of all ranks."""
_DATED = re.compile(r"%.*_\d{16}$")
"""The end of the identifier of a group that says when it was made."""
META_NAMES = ("pp_info", "distributed_args", "parallel_group_info")


@dataclass(frozen=True)
class Group:
    """A communication group: the framework's name for it (pp, dp, …), this rank's place in it, its global ranks."""

    name: str
    place: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Metadata:
    """The metadata of one rank. `groups`: decimal group hash → group. `place` and `job`: columns of model.RANKS."""

    declared: Declared = Declared()
    groups: dict[str, Group] = field(default_factory=dict)
    place: dict[str, int | None] = field(default_factory=dict)
    job: str | None = None
    notes: tuple[Note, ...] = ()

    def members(self, group: str) -> tuple[int, ...]:
        """The global ranks of the group with this hash; only its last three digits may be given. Empty if unknown."""
        recorded = self.groups.get(group)
        if recorded is None and len(group) <= 3:
            recorded = self._by_digits.get(group.zfill(3))
        return recorded.members if recorded else ()

    @cached_property
    def _by_digits(self) -> dict[str, Group]:
        """The groups by the last three digits of their hashes, where these are of one group only."""
        times = Counter(key[-3:] for key in self.groups)
        return {key[-3:]: group for key, group in self.groups.items() if times[key[-3:]] == 1}


def group_hash(identifier: str) -> str:
    """The decimal number by which HCCL calls a group: two rolling sums over the characters, 32 bit each.

    Op names end in its last three digits; text outputs append `@` and all of it. Verified on real captures.
    """
    low = high = 0
    for byte in identifier.encode(errors="replace"):
        high = (high * 29 + byte) & 0xFFFFFFFF
        low = (low * 131 + byte) & 0xFFFFFFFF
    return str(high << 32 | low)


def whole(value: object, least: int = 1) -> int | None:
    """`value` as a whole number of at least `least` that a column holds, from a number or its text; else None."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value.strip()) <= 18:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 31 else None


def json_file(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; empty when it is missing or damaged."""
    try:
        value = orjson.loads(read_file(path, MAX_JSON))
    except (OSError, orjson.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def info_of(home: Path) -> dict[str, Any]:
    """The content of `profiler_info` of the capture `home`; empty where there is none."""
    path = info_file(home, names_in)
    return json_file(path) if path else {}


def boot_epoch(info: Mapping[str, Any]) -> int | None:
    """Unix time at which the host's monotonic clock began (ns): equal, within microseconds, for all ranks of a host."""
    end = info.get("end_info")
    if not isinstance(end, dict):
        return None
    unix, monotonic = whole(end.get("collectionTimeEnd")), whole(end.get("MonotonicTimeEnd"))
    return None if unix is None or monotonic is None else unix - monotonic


def metadata(table: Sequence[tuple[str, str]], folder: Path, rank: int | None, source: Path) -> Metadata:
    """What the rows (name, one of META_NAMES, and JSON text) of META_DATA and the files in the capture `folder` record
    of `rank`."""
    notes: list[Note] = []
    values: dict[str, object] = dict(_metadata_file(folder, notes))
    for name, json in table:
        try:
            values[name] = orjson.loads(json)
        except orjson.JSONDecodeError:
            text = f"META_DATA: {name} is not valid JSON, or longer than {MAX_JSON >> 20} MB: left out"
            notes.append(Note("metadata-malformed", "warning", text, str(source)))
    groups = _groups(values.get("parallel_group_info"), rank)
    sizes = _sizes(values.get("distributed_args"))
    place = _place(groups, sizes, rank)
    old = {} if place.get("stage") is not None and "pp" in sizes else _old_mindspore(folder)
    if place.get("stage") is None and old.get("stage") is not None:
        place["stage"] = old["stage"]
    sizes.setdefault("pp", old.get("pp"))
    schedule, microbatches = _pp_info(values.get("pp_info"))
    vee = schedule is not None and schedule.startswith("dualpipe")
    declared = Declared(
        schedule=schedule, microbatches=microbatches, chunks=2 if vee else None, placement="vee" if vee else None,
        pp=sizes.get("pp"), tp=sizes.get("tp"), dp=sizes.get("dp"), cp=sizes.get("cp"),
        world=next((len(group.members) for group in groups.values() if group.name == WORLD), None),
    )  # fmt: skip
    return Metadata(declared, groups, place, _job(values.get("parallel_group_info")), tuple(notes))


def _metadata_file(folder: Path, notes: list[Note]) -> dict[str, Any]:
    path = folder / METADATA
    if not path.is_file():
        return {}
    values = json_file(path)
    if not values:
        notes.append(Note("metadata-malformed", "warning", "not a JSON object, left out", str(path)))
    return values


def _sizes(args: object) -> dict[str, int | None]:
    """tp, pp, dp, cp of `distributed_args`, in Megatron's long form or the short one."""
    if not isinstance(args, dict):
        return {}
    return {name: next((n for key in keys if (n := whole(args.get(key)))), None) for name, keys in _SIZES.items()}


def _pp_info(info: object) -> tuple[str | None, int | None]:
    """Schedule and micro-batches; MindSpeed-LLM writes its option as it is, so the schedule may be null."""
    if not isinstance(info, dict):
        return None, None
    kind = info.get("pp_type")
    return (kind.lower() if isinstance(kind, str) and kind else None), whole(info.get("microbatch_num"))


def _groups(info: object, rank: int | None) -> dict[str, Group]:
    """`parallel_group_info` by group hash; entries that do not hold a list of ranks are left out."""
    groups: dict[str, Group] = {}
    for identifier, entry in info.items() if isinstance(info, dict) else ():
        ranks = entry.get("global_ranks") if isinstance(entry, dict) else None
        if not isinstance(ranks, list) or not ranks:
            continue
        numbers = ranks if set(map(type, ranks)) == {int} else [whole(member, 0) for member in ranks]
        if None in numbers or min(numbers) < 0 or max(numbers) >= 1 << 31:
            continue
        members = tuple(numbers)
        place = members.index(rank) if rank in members else whole(entry.get("group_rank"), 0)
        if place is not None and place < len(members):
            groups[group_hash(identifier)] = Group(str(entry.get("group_name")), place, members)
    return groups


def _job(info: object) -> str | None:
    """The start of the job, by the group of all ranks: its identifier `ADDRESS%NIC_PORT_N_MICROSECONDS` says when it
    was made, and is alike on all of its ranks. Newer versions count groups, alike in every start."""
    for identifier, entry in info.items() if isinstance(info, dict) else ():
        if isinstance(entry, dict) and entry.get("group_name") == WORLD and _DATED.search(identifier):
            return job_of([identifier])
    return None


def _place(groups: dict[str, Group], sizes: dict[str, int | None], rank: int | None) -> dict[str, int | None]:
    """stage from the pipeline group, which is right in any rank order; tp, cp, dp from the order that it shows.

    The step between neighbours of the pipeline group is how many ranks count faster than the stage does (Megatron's
    orders tp-cp-ep-dp-pp and tp-cp-ep-pp-dp); what is left after taking the stage out splits by the sizes.
    """
    pipeline = next((g for g in groups.values() if g.name == "pp"), None)
    if pipeline is None:
        return {}
    place: dict[str, int | None] = {"stage": pipeline.place}
    steps = {b - a for a, b in zip(pipeline.members, pipeline.members[1:], strict=False)}
    tp, cp = sizes.get("tp") or 1, sizes.get("cp") or 1
    if rank is not None and len(steps) == 1 and (step := steps.pop()) > 0:
        replica = rank // (step * len(pipeline.members)) * step + rank % step
        place |= {"tp": replica % tp, "cp": replica // tp % cp, "dp": replica // (tp * cp)}
    return place


def _old_mindspore(folder: Path) -> dict[str, int | None]:
    """MindSpore up to 2.4 records its stage in profiler_info_{rank}.json."""
    info = info_of(folder)
    stages = whole(info.get("stage_num", info.get("pipeline_stage_num")))
    return {"stage": whole(info.get("pipeline_stage_id"), 0), "pp": stages}
