"""Observations of clocks that a test states message by message."""

import numpy as np

from trace_export.clocks.observations import Observations

Message = tuple[int, int, float, float]
"""From and to host, sent and received, in µs since their host's base."""
Member = tuple[int, int, float]
"""Collective, host, end in µs since the host's base."""


def observed(hosts: int, messages: list[Message], members: list[Member]) -> Observations:
    """Observations with these times."""
    rows = np.array(sorted(messages, key=lambda m: m[:2]), np.float64).reshape(-1, 4)
    i, j = rows[:, 0].astype(np.int64), rows[:, 1].astype(np.int64)
    _, first, pair = np.unique(i * hosts + j, return_index=True, return_inverse=True)
    met = np.array(members, np.float64).reshape(-1, 3)
    return Observations(
        hosts=[f"host{h}" for h in range(hosts)],
        base_ns=np.zeros(hosts, np.int64),
        observed=np.ones(hosts, bool),
        pair=pair,
        first=first,
        source=i[first],
        target=j[first],
        kind=np.zeros(len(first), np.int64),
        sent=rows[:, 2],
        received=rows[:, 3],
        event=met[:, 0].astype(np.int64),
        member=met[:, 1].astype(np.int64),
        entered=np.zeros(len(met)),
        left=met[:, 2],
    )
