"""What `report` says of a case, held against what was planted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samples.generators.data_parallel import WRITERS, Job
from tests.support.command import command
from tests.verdicts.cases import Case

CLOSE = 0.1
"""How far a gain may be from that of the paired simulation."""


@dataclass(frozen=True)
class Judgement:
    """What was planted and said, both gains, and what is wrong."""

    case: Case
    said: str
    said_ns: float
    wrong: tuple[str, ...]

    @property
    def row(self) -> str:
        """A row of the table of all cases."""
        gains = f"{self.case.gain_ns / 1e6:8.2f} {self.said_ns / 1e6:8.2f} ms"
        return f"{self.case.planted:44.44} {self.said:44.44} {gains}  {', '.join(self.wrong) or 'right'}"


def report(folder: Path, job: Job, form: str, *options: object) -> dict[str, Any]:
    """The document of `report --json` with `options` of the job, written below `folder`."""
    WRITERS[form](folder, job)
    extra = [*options, *(["--multi_machine"] if form == "paddle" and job.hosts > 1 else [])]
    done = command("report", folder, "--json", "--jobs", 1, *extra)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def causes(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The sentences that name a cause with a gain."""
    return [sentence for sentence in document["verdict"] if sentence["facts"].get("gain_ns")]


def bubble(document: dict[str, Any]) -> float:
    """The bubble of the run that a sentence says."""
    return next(float(s["facts"]["bubble"]) for s in document["verdict"] if s["facts"].get("bubble") is not None)


PLACE = ("stage", "replica", "rank", "ranks", "hosts", "src_rank", "dst_rank")


def is_at(sentence: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Whether the sentence names the place, by any of the names that it has."""
    facts = sentence["facts"]
    if "src_rank" in place:
        return all(facts.get(name) == place[name] for name in ("src_rank", "dst_rank"))
    if "code" in place and place["code"] not in sentence["code"]:
        return False
    if facts.get("ranks") and "ranks" in place:
        return bool(sorted(facts["ranks"]) == place["ranks"])
    hosts = facts.get("hosts") or []
    if "host" in place and len(hosts) == 1:
        return bool(hosts[0].removeprefix("node").removeprefix("machine") == str(place["host"]))
    named = any(facts.get(name) is not None and facts[name] == place.get(name) for name in ("stage", "replica", "rank"))
    return named or "code" in place


def judge(folder: Path, case: Case) -> Judgement:
    """Holds the first cause that `report` names against what was planted."""
    document = report(folder, case.job, case.form)
    named, wrong = causes(document), []
    first: dict[str, Any] = named[0] if named else {"code": "nothing", "facts": {}}
    facts = first["facts"]
    said_ns = float(facts.get("gain_ns") or 0)
    if not is_at(first, case.place):
        wrong.append("another place")
    if abs(said_ns - case.gain_ns) > CLOSE * case.gain_ns:
        wrong.append("another gain")
    if named and all(row.get("gain_ns") != facts["gain_ns"] for row in document.get("causes", [])):
        wrong.append("not in the table")
    said = " ".join(f"{name} {facts[name]}" for name in PLACE if facts.get(name) not in (None, []))
    return Judgement(case, f"{first['code']} {said}", said_ns, tuple(wrong))
