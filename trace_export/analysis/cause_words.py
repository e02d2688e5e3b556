"""The causes of slow steps in words: what is slow where, by how much, and what a step would take without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trace_export.model import NO_HOST
from trace_export.selection import Numbers
from trace_export.units import duration, times

Row = Mapping[str, Any]
"""A row of `explanation.CAUSES`."""

HOSTS_SAID = 4
RANKS_DRAWN = 8
"""Of more ranges of ranks than these, a command draws these."""
RANKS_SAID = 28
"""Characters that the numbers of ranks may take."""


def sentence(row: Row) -> str:
    """The whole sentence."""
    which = " (they run each block together: one of them alone may slow them all)" if row.get("undivided") else ""
    gain = "" if row["code"] == "long-optimizer" else f"; {_gain(row)}"
    return f"{title(row)}: {_how(row)}{which}{gain}."


def title(row: Row) -> str:
    """What is slow or late, and where."""
    return _TITLES[row["code"]](row)


def name(row: Row) -> str:
    """What is slow or late, without where: `slow stage`."""
    code: str = row["code"]
    return _NAMES.get(code, code.replace("-", " "))


def where(row: Row) -> str:
    """The place alone: `stage 2, rank 5, node1, device 1`; all ranks where it has none."""
    if row["src_rank"] is not None:
        way = "↔" if row["direction"] is None else "→"
        return ", ".join([f"rank {row['src_rank']} {way} rank {row['dst_rank']}", *_hosts(row)])
    if row.get("parts"):
        return ", ".join(row["parts"])
    if row["code"].endswith("-host"):
        return ", ".join([*_hosts(row), *_parts(row, stage=True, hosts=False)])
    replica = [f"replica {row['replica']}"] if row["code"] == "slow-replica" else []
    return ", ".join([*replica, *_parts(row, stage=True)]) or "all ranks"


def short(code: str, place: Row) -> str:
    """The place in as few words as name it: `host node1`, `rank 5`, `link of rank 3 and rank 7`."""
    if place.get("src_rank") is not None:
        return f"link of rank {place['src_rank']} and rank {place['dst_rank']}"
    if code.endswith("-host"):
        return f"host {place['hosts'][0]}"
    whole = code.removeprefix("slow-")
    return f"{whole} {place[whole]}" if whole in ("stage", "replica") else ranks_text(place["ranks"])


def next_step(row: Row) -> str:
    """What to do about it, in a clause."""
    return _NEXT[row["code"]](row)


def numbers(ranks: Sequence[int]) -> str:
    """Ranks as text: `40-47`; of many that do not follow one another the first: `2,6,10,… (64 ranks)`."""
    text = str(Numbers.of(ranks))
    if len(text) <= RANKS_SAID:
        return text
    return f"{text[:RANKS_SAID].rpartition(',')[0]},… ({len(ranks)} ranks)"


def listed(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {numbers(ranks)}"


def _hosts(row: Row) -> list[str]:
    """The hosts, if they are few, and the device of a single rank."""
    device = [] if row.get("device") is None else [f"device {row['device']}"]
    hosts = _few_hosts(row)
    return ([hosts] if hosts else []) + device


def _few_hosts(row: Row) -> str:
    """The hosts, "" where they are many, called after the ranks, or not recorded."""
    hosts = [host for host in row["hosts"] if host not in {NO_HOST, *(f"rank {rank}" for rank in row["ranks"])}]
    return ", ".join(hosts) if len(hosts) <= HOSTS_SAID else ""


def _parts(row: Row, *, stage: bool = False, ranks: bool = True, hosts: bool = True) -> list[str]:
    """`stage 2`, `rank 5`, `node1`, `device 1`, without the parts that are said elsewhere."""
    parts = []
    if stage and row["stage"] is not None:
        parts.append(f"stage {row['stage']}")
    if ranks and row["ranks"]:
        parts.append(ranks_text(row["ranks"]))
    return parts + (_hosts(row) if hosts else [])


def _place(row: Row, *, stage: bool = False, ranks: bool = True, hosts: bool = True) -> str:
    """` (stage 2, rank 5, node1, device 1)`, without the parts that the title says."""
    parts = _parts(row, stage=stage, ranks=ranks, hosts=hosts)
    return f" ({', '.join(parts)})" if parts else ""


def _who(row: Row) -> str:
    """The ranks as a subject: `Rank 5 (stage 2, node1, device 1)`."""
    return ranks_text(row["ranks"]).capitalize() + _place(row, stage=True, ranks=False)


def _are(row: Row) -> str:
    return "is" if len(row["ranks"]) == 1 else "are"


def _host(row: Row) -> str:
    return f"Host {row['hosts'][0]}{_place(row, stage=True, hosts=False)}"


def _link(row: Row) -> str:
    if row["src_rank"] is not None:
        one = ("from", "to") if row["direction"] is not None else ("between", "and")
        ends = f"The link {one[0]} rank {row['src_rank']} {one[1]} rank {row['dst_rank']}"
        return f"{ends} is slow{_place(row, ranks=len(row['ranks']) > 2)}"
    return f"The links between {ranks_text(row['ranks'])}{_place(row, ranks=False)} are slow"


def _late(row: Row) -> str:
    start = "starts" if len(row["ranks"]) == 1 else "start"
    return f"{_who(row)} {start} late"


_TITLES: dict[str, Callable[[Row], str]] = {
    "slow-stage": lambda row: f"Stage {row['stage']} is slow{_place(row)}",
    "slow-replica": lambda row: f"Replica {row['replica']} is slow{_place(row)}",
    "slow-host": lambda row: f"{_host(row)} is slow",
    "slow-rank": lambda row: f"{_who(row)} {_are(row)} slow",
    "slow-optimizer": lambda row: f"The optimizer on {ranks_text(row['ranks'])}{_place(row, ranks=False)} is slow",
    "slow-link": _link,
    "slow-collective": lambda row: (
        f"The collective of {ranks_text(row['ranks'])}{_place(row, stage=True, ranks=False)} is slow"
    ),
    "late-rank": _late,
    "late-host": lambda row: f"{_host(row)} starts late",
    "late-collective": lambda row: f"{_who(row)} {'comes' if len(row['ranks']) == 1 else 'come'} late to a collective",
    "data-loading": lambda row: f"{_who(row)} {'begins' if len(row['ranks']) == 1 else 'begin'} the steps late",
    "unequal-microbatches": lambda row: "The micro-batches are of unequal length",
    "long-pause": lambda row: "Between the steps all ranks pause",
    "long-optimizer": lambda row: "The optimizer is long",
    "hidden-causes": lambda row: f"Several causes hide one another ({', '.join(row['parts'])})",
}  # fmt: skip
"""The subject of a sentence, by code."""

_NAMES = {
    "long-pause": "pause between steps", "unequal-microbatches": "unequal micro-batches",
    "late-collective": "late to collective", "hidden-causes": "several together",
}  # fmt: skip
"""Names of the codes that do not read as a name."""

_BESIDE = {
    "slow-stage": "those of the other stages", "slow-replica": "those of the other replicas",
    "slow-host": "those of their peers on other hosts", "slow-link": "on links of the same kind",
    "slow-collective": "that of the other groups",
}  # fmt: skip
"""What a slow one is compared with, by code; a rank with its peers."""


def _how(row: Row) -> str:
    """How much slower or later."""
    if row["code"] == "unequal-microbatches":
        return f"a long one takes {times(row['ratio'])} the usual time, forward and backward alike"
    if row["code"] == "hidden-causes":
        return "if only one is fixed, the others still hold the step up"
    late = duration(row["late_ns"]) if row["late_ns"] is not None else ""
    if row["code"] == "long-pause":
        perhaps = "data loading, checkpoints, an optimizer without marks, or a wait for a late one"
        return f"no block starts for {late} on average, although no recorded input is missing ({perhaps})"
    if row["code"] == "long-optimizer":
        return f"it takes {late} of a step"
    if row["code"] == "data-loading":
        return f"{late} a step after {'its' if len(row['ranks']) == 1 else 'their'} peers (data loading)"
    if row["late_ns"] is not None:
        return f"{late} a step after the input is there (CPU, scheduler, or a wait that was not recorded)"
    one = len(row["ranks"]) == 1
    what = {"slow-link": "a transfer takes", "slow-collective": "it takes", "slow-optimizer": "it takes"}
    blocks = "their blocks take" if row["code"] == "slow-rank" and not one else "its blocks take"
    peers = f"{'that' if row['code'] in what else 'those'} of {'its' if one else 'their'} peers"
    compared_with = _BESIDE.get("slow-stage" if row.get("unread") else row["code"], peers)
    return f"{what.get(row['code'], blocks)} {times(row['ratio'])} as long as {compared_with}"


def _gain(row: Row) -> str:
    """How long a step would be without it."""
    if row["gain_ns"] is None:
        return "how much it costs cannot be said"
    then = {
        "slow": "at their speed",
        "late": "without that",
        "data": "without that",
        "unequal": "if all were equal",
        "hidden": "without all of them",
    }
    how = "at its speed" if row["code"] == "slow-collective" else then.get(row["code"].split("-")[0], "without it")
    gain = f"{duration(row['gain_ns'])} ({row['gain']:.1%}) shorter"
    if row["code"] == "long-pause":  # every job pauses a little
        return f"{how}, a step would be up to {gain}"
    return f"{how}, a step would be {gain}, ± {row['band']:.0%} of that"


def _move_layers(row: Row) -> str:
    if row["even_ns"] is None:
        return f"give stage {row['stage']} fewer layers"
    if row["even_ns"] <= 0:
        return f"find what slows its blocks: moving layers from stage {row['stage']} to the others gains nothing"
    alone = len(row["ranks"]) == 1  # more work and a slower device look the same
    check = f"; if it holds no more work than they do, check {_devices(row)}" if alone else ""
    return (
        f"move layers from stage {row['stage']} to the others; with its surplus spread evenly over all stages, a step"
        f" would be {duration(row['even_ns'])} shorter{check}"
    )


def _check_rank(row: Row) -> str:
    check = f"check clock rate, temperature, errors and other processes of {_devices(row)}"
    if not row.get("unread"):
        return check
    stage = f"stage {row['stage']}"
    return f"if {stage} has other ranks, read them too: if they are as slow, give {stage} fewer layers; if not, {check}"


def _check_host(row: Row) -> str:
    check = f"check clock rates, temperature and other load of {row['hosts'][0]}, or run without this host"
    if not row.get("unread"):
        return check
    return f"if its stages hold more work than the others, move layers from them; if not, {check}"


def _on_hosts(row: Row) -> str:
    return f" on {hosts}" if (hosts := _few_hosts(row)) else ""


def _devices(row: Row) -> str:
    """The devices of the ranks, as the subject of a check."""
    if row.get("device") is not None:
        return f"device {row['device']}{_on_hosts(row)}"
    return f"the device{'s' * (len(row['ranks']) != 1)} of {ranks_text(row['ranks'])}{_on_hosts(row)}"


def _between(row: Row) -> str:
    hosts = row["hosts"]
    if len(hosts) == 2:
        return f"{hosts[0]} and {hosts[1]}"
    ends = f"rank {row['src_rank']} and rank {row['dst_rank']}"
    return (ends if row["src_rank"] is not None else ranks_text(row["ranks"])) + _on_hosts(row)


def _draw(row: Row, detail: str) -> str:
    """The command that draws some ranks with their communication and kernels: of many that do not follow one another
    the first. It leaves the chart of all ranks as it is."""
    ranks = Numbers.of(row["ranks"])
    if len(ranks.ranges) > RANKS_DRAWN:
        ranks = Numbers(ranks.ranges[:RANKS_DRAWN])
    return f"trace-export export DIR --ranks {ranks} --detail {detail} --out ranks"


_NEXT: dict[str, Callable[[Row], str]] = {
    "slow-stage": _move_layers,
    "slow-replica": lambda row: (
        f"look for what its hosts share (power, cooling, switch): compare the clock rates of {_devices(row)}"
    ),
    "slow-host": _check_host,
    "slow-rank": _check_rank,
    "slow-optimizer": lambda row: (
        f"compare the parameters that {ranks_text(row['ranks'])} must update with those of its peers, then check"
        f" {_devices(row)}"
    ),
    "slow-link": lambda row: (
        f"measure the bandwidth between {_between(row)}, and check cable, adapter and route; to see its transfers:"
        f" {_draw(row, 'comm')}"
    ),
    "slow-collective": lambda row: f"test the network between its ranks; to see the collectives: {_draw(row, 'comm')}",
    "late-rank": lambda row: (
        f"profile the CPU of {ranks_text(row['ranks'])} (Python, garbage collection, other processes); to see what"
        f" runs before, where kernels were recorded: {_draw(row, 'kernels')}"
    ),
    "late-host": lambda row: (
        f"check the CPU load of {row['hosts'][0]} and to which cores its processes are bound, and profile its CPU"
    ),
    "late-collective": lambda row: (
        f"find what {ranks_text(row['ranks'])} {'does' if len(row['ranks']) == 1 else 'do'} before the collective:"
        f" {_draw(row, 'comm')}"
    ),
    "data-loading": lambda row: (
        f"give the data loader of {ranks_text(row['ranks'])} more workers or prefetching, and check its storage"
    ),
    "unequal-microbatches": lambda row: "give all micro-batches as many tokens (pack or sort the sequences)",
    "long-pause": lambda row: (
        "profile what runs between the steps on the CPU: load data ahead, write checkpoints and logs in the background"
    ),
    "long-optimizer": lambda row: "shard the optimizer over the data-parallel ranks, or use a fused one",
    "hidden-causes": lambda row: "fix all of them; trace-export report DIR --full lists each",
}  # fmt: skip
"""What to do next, by code."""
