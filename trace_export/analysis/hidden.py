"""Causes that hide one another: each alone gains little, because without it the others hold the step as long.

Two slow ranks of different replicas, say, that wait for each other at the end of a step: only without both is it
shorter.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trace_export.analysis import cause_words
from trace_export.analysis.causes import Candidate, scenario
from trace_export.analysis.typical import Typical
from trace_export.steps.replay import Replay

MORE = 0.01
"""Causes hide one another if all of them gain more than each by itself, by this share of a step."""


def hidden(
    candidates: Sequence[Candidate],
    gains: Sequence[float],
    base_ns: float,
    typical: Typical,
    replay: Replay,
    step_ns: float,
) -> tuple[Candidate, float, list[int]] | None:
    """The `candidates` that hide one another, as one cause, with its gain and the numbers of its parts; None if there
    are none. `gains`: of each candidate alone, from the `base_ns` of a step with all of them."""
    placed = [n for n, each in enumerate(candidates) if each.place["ranks"]]
    least = MORE * step_ns
    if len(placed) < 2:
        return None
    shortest = float(replay.means([scenario(typical, candidates, placed)])[0])
    if base_ns - shortest < sum(gains[n] for n in placed) + least:
        return None
    others = [[m for m in placed if m != n] for n in placed]
    lengths = replay.means(scenario(typical, candidates, gone) for gone in others).tolist()
    parts = [n for n, length in zip(placed, lengths, strict=True) if length - shortest >= gains[n] + least]
    if len(parts) < 2:
        return None
    gain = base_ns - float(replay.means([scenario(typical, candidates, parts)])[0])
    joint = _joint(typical, [candidates[n] for n in parts])
    return (joint, gain, parts) if gain >= sum(gains[n] for n in parts) + least else None


def _joint(typical: Typical, parts: Sequence[Candidate]) -> Candidate:
    """The parts as one cause, with the columns of the place that they share."""
    codes = {each.code for each in parts}
    alike = len(codes) == 1 and codes <= {"slow-rank", "slow-link"}
    shared = {
        name: parts[0].place.get(name)
        for name in ("stage", "replica", "direction")
        if len({each.place.get(name) for each in parts}) == 1
    }
    joined = {
        name: sorted({one for each in parts for one in each.place[name]})  # type: ignore[attr-defined]
        for name in ("ranks", "hosts")
    }
    if codes == {"slow-link"} and shared.get("replica") is not None:  # of tensor-parallel peers, say
        first = min(parts, key=lambda each: str(each.place.get("src_rank")).zfill(12))
        shared |= {name: first.place.get(name) for name in ("src_rank", "dst_rank")}
    sigmas = [each.sigmas for each in parts if each.sigmas is not None]
    return Candidate(
        codes.pop() if alike else "hidden-causes",
        {**shared, **joined, "parts": None if alike else [cause_words.short(each.code, each.place) for each in parts]},
        float(np.mean([each.excess for each in parts])) if alike else 0.0, min(sigmas, default=None),
        tuple(change for each in parts for change in each.changes),
    )  # fmt: skip
