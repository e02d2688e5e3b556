"""What is said of some ranks of a run: that they are some, and no cause that only the others could show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verdicts.cases import drawn
from tests.verdicts.judge import causes, report

ELSEWHERE = ("slow rank", "late rank", "held host")


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 8))])
def test_a_cause_of_ranks_that_were_not_read_is_nobody_elses(name: str, seed: int, tmp_path: Path) -> None:
    """The replica that is read waits in its collectives for the one with the cause."""
    case = drawn(7000 + seed, name, "kineto")
    wrong = {case.job.place(rank)[0] for rank in case.place["ranks"]}
    replica = next((a for a in range(case.job.replicas) if a not in wrong), None)
    if replica is None:
        pytest.skip("the host has ranks of all replicas")
    read = sorted(rank for s in range(case.job.stages) for rank in case.job.lane(replica, s))
    document = report(tmp_path, case.job, case.form, "--ranks", ",".join(map(str, read)))
    assert causes(document) == []
    assert f"only ranks {_shown(read)} were read" in document["verdict"][-1]["text"]


def _shown(ranks: list[int]) -> str:
    """`0,4,8` or `0-3`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
