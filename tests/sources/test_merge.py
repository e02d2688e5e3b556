"""Several profiles → one: which number an assumed rank gets, and which hosts are one."""

from dataclasses import replace

import polars as pl
import pytest

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
    """On another host it may be another rank, of which the profiler has recorded the number on its host."""
    whole, (error,) = merge([part(3, "recorded"), part(3, "recorded", "i")])
    assert whole.ranks["source"].to_list() == ["h/3 recorded"]
    remedy = (
        "if each host counts its ranks from 0, correct the ranks in the files; else keep only one of them in the folder"
    )
    assert str(error) == f"i/3 recorded holds rank 3, which h/3 recorded holds too; {remedy}"


def test_hosts_are_called_by_labels_that_are_theirs_alone() -> None:
    parts = [part(0, "recorded", "uid0", "node0"), part(1, "recorded", "uid0", "node0")]
    parts += [part(2, "recorded", "uid1", "box"), part(3, "recorded", "uid2", "box")]
    whole, _ = merge(parts)
    assert whole.hosts.select("host", "machine").rows() == [("node0", 0), ("uid1", 1), ("uid2", 2)]
    assert whole.ranks["host"].to_list() == ["node0", "node0", "uid1", "uid2"]


def at(made: Profile, start: int, end: int, stage: int | None = 0) -> Profile:
    """The profile with its block at these times, on this stage."""
    spans = made.spans.with_columns(start_ns=pl.lit(start, pl.Int64), end_ns=pl.lit(end, pl.Int64))
    return replace(made, spans=spans, ranks=made.ranks.with_columns(stage=pl.lit(stage, pl.Int32)))


@pytest.mark.parametrize(
    ("second", "windows"),
    [
        (at(part(1, "assumed"), 30, 40), 1),
        (at(part(1, "assumed"), 20, 40), 0),
        (at(part(1, "assumed"), 30, 40, stage=1), 0),
        (at(part(1, "assumed", "i"), 30, 40), 0),
        (at(part(1, "recorded"), 30, 40), 0),
        (part(1, "assumed"), 0),
    ],
    ids=["windows", "at the same time", "another stage", "another host", "recorded", "without times"],
)
def test_assumed_ranks_that_do_not_run_at_the_same_time_are_a_warning(second: Profile, windows: int) -> None:
    for parts in ([at(part(0, "assumed"), 10, 20), second], [second, at(part(0, "assumed"), 10, 20)]):
        whole, _ = merge(parts)
        result = [note for note in whole.notes if note.code == "ranks-one-after-another"]
        assert sum(note.count for note in result) == windows
        assert [note.where for note in result] == ["h/1 assumed"] * windows


def named(made: Profile, source: str) -> Profile:
    return replace(made, ranks=made.ranks.with_columns(source=pl.lit(source)))


@pytest.mark.parametrize(
    ("name", "begin", "runs", "windows"),
    [
        ("trace_8_rank0.json", 30, [0], [1, 2]),
        ("trace_8_rank0.json", 0, [0], [1, 2]),
        ("trace_8_rank1.json", 30, [], []),
        ("trace_12_rank0-PP-1.json", 30, [2], [None]),
        ("other_8_rank0.json", 30, [2], [None]),
        ("trace_8_rank0.json", 15, [], []),
    ],
    ids=["later", "earlier", "of another rank by its name", "with a place", "of another name", "at the same time"],
)
def test_a_recorded_rank_that_comes_again(name: str, begin: int, runs: list[int], windows: list[int | None]) -> None:
    """By the names of files; no process is recorded."""
    one = named(at(part(0, "recorded"), 12, 20), "d/trace_12_rank0.json")
    other = named(at(part(0, "recorded"), begin, begin + 10), f"d/{name}")
    for parts in ([one, other], [other, one]):
        whole, refused = merge(parts)
        assert len(refused) == (0 if runs else 1)
        if runs:
            assert whole.spans["run"].fill_null(0).unique().to_list() == runs
            assert whole.spans["window"].to_list() == windows
            assert whole.recordings.select("window").to_series().to_list() == windows
            assert whole.ranks["rank"].to_list() == [0]


def test_runs_in_several_folders() -> None:
    parts = [named(at(part(0, "recorded"), 10 * i, 10 * i + 5), f"run{i}/rank0.json") for i in range(2)]
    whole, refused = merge(parts)
    assert refused == []
    assert whole.ranks["source"].to_list() == ["run1/rank0.json"]
    (note,) = whole.notes
    assert note.text.startswith("run0 and run1 hold different jobs")


@pytest.mark.parametrize(
    ("names", "windows"),
    [
        (("17-TP-0-PP-0.json", "17-TP-0-PP-1.json"), False),
        (("17-TP-0-PP-0.json", "19-TP-0-PP-0.json"), True),
        (("step5_x.json", "step9_x.json"), True),
        (("node0.json", "node1.json"), False),
    ],
)
def test_numbers_of_places_are_none_of_windows(names: tuple[str, str], windows: bool) -> None:
    """A stage that has done its work may end before the next begins."""
    parts = [named(at(part(0, "recorded"), 10 * i, 10 * i + 5), f"d/{name}") for i, name in enumerate(names)]
    whole, refused = merge(parts)
    assert len(refused) == (0 if windows else 1)
    assert whole.spans["window"].to_list() == ([1, 2] if windows else [None])
