"""Several profiles → one: which number an assumed rank gets, and which hosts are one."""

from __future__ import annotations

import polars as pl

from trace_export.model import HOSTS, RANKS, SPANS, Profile, conform
from trace_export.sources.merge import merge


def part(rank: int, origin: str, host: str = "h", label: str | None = None, machine: int = 0) -> Profile:
    """The profile of one rank, with one block; its source is called after the arguments."""
    source = f"{host}/{rank} {origin}"
    ranks = pl.DataFrame({"rank": [rank], "host": host, "kind": "nsys", "source": source, "rank_origin": origin})
    return Profile(
        hosts=conform(pl.DataFrame({"host": [host], "machine": machine, "label": label or host}), HOSTS),
        ranks=conform(ranks, RANKS),
        spans=conform(pl.DataFrame({"rank": [rank], "marker": source}), SPANS),
    )


def test_assumed_ranks_take_the_next_number_that_nobody_recorded() -> None:
    whole, refused = merge([part(0, "assumed"), part(0, "assumed", "i"), part(1, "recorded", "j")])
    assert refused == []
    assert dict(whole.ranks.select("source", "rank").iter_rows()) == {
        "h/0 assumed": 0, "i/0 assumed": 2, "j/1 recorded": 1,
    }  # fmt: skip
    assert dict(whole.spans.select("marker", "rank").iter_rows()) == dict(
        whole.ranks.select("source", "rank").iter_rows()
    )
    (note,) = whole.notes
    assert (note.code, note.count) == ("rank-numbers-assumed", 2)


def test_a_rank_recorded_twice_is_refused() -> None:
    whole, (error,) = merge([part(3, "recorded"), part(3, "recorded", "i")])
    assert whole.ranks["source"].to_list() == ["h/3 recorded"]
    assert str(error) == "i/3 recorded: holds rank 3, which h/3 recorded holds too; keep only one of them in the folder"


def test_hosts_are_called_by_labels_that_are_theirs_alone() -> None:
    parts = [part(0, "recorded", "uid0", "node0"), part(1, "recorded", "uid0", "node0")]
    parts += [part(2, "recorded", "uid1", "box"), part(3, "recorded", "uid2", "box")]
    whole, _ = merge(parts)
    assert whole.hosts.select("host", "machine").rows() == [("node0", 0), ("uid1", 1), ("uid2", 2)]
    assert whole.ranks["host"].to_list() == ["node0", "node0", "uid1", "uid2"]
