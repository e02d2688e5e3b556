"""The causes of slow steps in words: what is slow where, by how much, and what a step would take without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trace_export.selection import Numbers
from trace_export.units import duration

Row = Mapping[str, Any]
"""A row of `explanation.CAUSES`."""

HOSTS_SAID = 4


def sentence(row: Row) -> str:
    """The whole sentence."""
    gain = "" if row["code"] == "long-optimizer" else f"; {_gain(row)}"
    return f"{title(row)}: {_how(row)}{gain}."


def title(row: Row) -> str:
    """What is slow or late, and where."""
    return _TITLES[row["code"]](row)


def numbers(ranks: Sequence[int]) -> str:
    """Ranks as text: `40-47`."""
    return str(Numbers.of(ranks))


def ranks_text(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {numbers(ranks)}"


def _place(row: Row, *, stage: bool = False, ranks: bool = True, hosts: bool = True) -> str:
    """` (stage 2, rank 5, node1)`, without what the title says."""
    parts = []
    if stage and row["stage"] is not None:
        parts.append(f"stage {row['stage']}")
    if ranks and row["ranks"]:
        parts.append(ranks_text(row["ranks"]))
    if hosts and 0 < len(row["hosts"]) <= HOSTS_SAID:
        parts.append(", ".join(row["hosts"]))
    return f" ({', '.join(parts)})" if parts else ""


def _who(row: Row) -> str:
    """The ranks as a subject: `Rank 5 (stage 2, node1)`."""
    return ranks_text(row["ranks"]).capitalize() + _place(row, stage=True, ranks=False)


def _are(row: Row) -> str:
    return "is" if len(row["ranks"]) == 1 else "are"


def _host(row: Row) -> str:
    return f"Host {row['hosts'][0]}{_place(row, stage=True, hosts=False)}"


def _link(row: Row) -> str:
    if row["src_rank"] is not None:
        ways = "and back " if row["direction"] is None else ""
        ends = f"The link from rank {row['src_rank']} to rank {row['dst_rank']}"
        return f"{ends} {ways}is slow{_place(row, ranks=len(row['ranks']) > 2)}"
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
    "slow-collective": lambda row: f"The collective of {row['group']}{_place(row)} is slow",
    "late-rank": _late,
    "late-host": lambda row: f"{_host(row)} starts late",
    "late-collective": lambda row: f"{_who(row)} {'comes' if len(row['ranks']) == 1 else 'come'} late to a collective",
    "data-loading": lambda row: f"{_who(row)} {'begins' if len(row['ranks']) == 1 else 'begin'} the steps late",
    "unequal-microbatches": lambda row: "The micro-batches are of unequal length",
    "long-pause": lambda row: "Between the steps all ranks pause",
    "long-optimizer": lambda row: "The optimizer is long",
}  # fmt: skip
"""The subject of a sentence, by code."""

_BESIDE = {
    "slow-stage": "the other stages", "slow-replica": "the other replicas", "slow-host": "their peers on other hosts",
    "slow-rank": "the other ranks of the stage", "slow-optimizer": "those of its peers", "slow-link": "like links",
    "slow-collective": "that of the other groups",
}  # fmt: skip


def _how(row: Row) -> str:
    """How much slower or later."""
    if row["code"] == "unequal-microbatches":
        return f"forward and backward of a micro-batch are long together, and vary by {row['ratio'] - 1:.0%}"
    late = duration(row["late_ns"]) if row["late_ns"] is not None else ""
    if row["code"] == "long-pause":
        return f"no block starts for {late} although nothing is missing that was recorded (data loading, checkpoints)"
    if row["code"] == "long-optimizer":
        return f"it takes {late} of a step"
    if row["code"] == "data-loading":
        return f"{late} of a step after their peers (data loading)"
    if row["late_ns"] is not None:
        return f"{late} of a step, with the input there (CPU, scheduler), or it waits for what was not recorded"
    what = {"slow-link": "a transfer takes", "slow-collective": "it takes", "slow-optimizer": "it takes"}
    subject = what.get(row["code"], "the blocks take")
    return f"{subject} {row['ratio']:.2f} × as long as {_BESIDE[row['code']]}"


def _gain(row: Row) -> str:
    """What a step would take without it."""
    if row["gain_ns"] is None:
        return "what a step would take without it cannot be said"
    then = {"slow": "as fast as those", "late": "without that", "data": "without that", "unequal": "with equal ones"}
    how = then.get(row["code"].split("-")[0], "without it")
    text = f"{how}, a step would be {duration(row['gain_ns'])} ({row['gain']:.1%}) shorter"
    if row["even_ns"] is not None:
        text += f", with its surplus spread over all stages {duration(max(row['even_ns'], 0.0))}"
    return text
