"""The threads of an Nsight Systems export that bear names."""

from __future__ import annotations

from collections import defaultdict

from trace_export.inference.threads import AUTOGRAD
from trace_export.sources.shared.sqlite import Database


def autograd_threads(db: Database) -> dict[int, frozenset[int]]:
    """Process → its threads whose names are those of the autograd engine."""
    if not db.has("ThreadNames", "globalTid", "nameId"):
        return {}
    rows = db.texts(
        "SELECT DISTINCT globalTid FROM ThreadNames WHERE globalTid IS NOT NULL AND"
        f" nameId IN (SELECT id FROM StringIds WHERE value GLOB '{AUTOGRAD}*')"
    )
    threads: dict[int, set[int]] = defaultdict(set)
    for (thread,) in rows:
        threads[thread >> 24].add(thread)
    return {process: frozenset(own) for process, own in threads.items()}
