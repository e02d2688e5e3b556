"""The recorder's files, read while they grow, hold the blocks that were recorded, however they are cut and rotated."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samples.generators import recorder as generate
from samples.generators.pipeline import Block
from tests.support.rows import examples
from trace_export.errors import SourceError
from trace_export.instrument.backends.block_file import BlockFile
from trace_export.sources.find import find
from trace_export.sources.recorder.follow import Follower
from trace_export.sources.source import Source

KINDS = ("F", "F", "B", "B", "OPT")
BLOCKS = [
    Block(0, step, kind, None if kind == "OPT" else n % 2, 1000 * (5 * step + n), 1000 * (5 * step + n) + 900)
    for step in range(12)
    for n, kind in enumerate(KINDS)
]
LINES = [generate.line(block, block.start_ns, "h") for block in BLOCKS]


def header(pid: int = 7, unix_ns: int = 10**18, **facts: object) -> str:
    return generate.header(host="node0", boot="b", pid=pid, unix_ns=unix_ns, clock_ns=0, rank=0, **facts)


def followed(follower: Follower, after: tuple[int, int] | None = None) -> list[tuple[object, ...]]:
    spans = follower.profile(after).spans.sort("start_ns")
    return [(*row, start - 10**18) for *row, start in spans.select("step", "kind", "start_ns").iter_rows()]


def expected(blocks: list[Block]) -> list[tuple[object, ...]]:
    return [(block.step, block.kind, block.start_ns) for block in blocks]


def last(blocks: list[Block], keep: int) -> list[Block]:
    return [block for block in blocks if block.step > blocks[-1].step - keep]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank0.blocks"


@pytest.fixture
def source(path: Path) -> Source:
    path.write_text(header() + "".join(LINES[:20]))
    (result,) = find(path.parent).sources
    return result


@examples(8)
@given(cuts=st.lists(st.integers(0, len(LINES)), max_size=8), keep=st.integers(1, 3), limit=st.integers(2800, 6000))
def test_what_the_recorder_appends(cuts: list[int], keep: int, limit: int) -> None:
    """Its own file, which becomes another one whenever half of the limit is reached."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.blocks"
        file = BlockFile(path, limit, header)
        follower = Follower(keep)
        written = 0
        for cut in [*sorted(cuts), len(LINES)]:
            for line in LINES[written:cut]:
                file.append(line)
                if written % 20 == 0:  # a file holds more blocks than these
                    follower.advance(find(Path(folder)).sources[0])
                written += 1
            follower.advance(find(Path(folder)).sources[0])
            assert followed(follower) == (expected(last(BLOCKS[:written], keep)) if written else [])


def test_half_a_line_waits_for_its_rest(source: Source, path: Path) -> None:
    whole = path.read_text()
    path.write_text(whole[:-1])
    follower = Follower(9)
    assert follower.advance(source)
    assert followed(follower) == expected(BLOCKS[:19])
    assert not follower.advance(source)
    path.write_text(whole)
    assert follower.advance(source)
    assert followed(follower) == expected(BLOCKS[:20])
    assert follower.profile().notes == ()


def test_only_what_was_not_seen_yet(source: Source, path: Path) -> None:
    follower = Follower(2)
    follower.advance(source)
    assert followed(follower, (0, 2)) == expected(BLOCKS[15:20])
    path.write_text(header() + "".join(LINES))
    follower.advance(source)
    assert followed(follower, (0, 2)) == expected(BLOCKS[15:])
    assert follower.profile((0, 2)).ranks["rank"].to_list() == [0]
    assert followed(follower) == expected(BLOCKS[50:])


def test_what_was_recorded_before_the_watch_began(source: Source, path: Path) -> None:
    path.rename(path.with_name(path.name + ".earlier"))
    path.write_text(header() + LINES[20])
    follower = Follower(2)
    follower.advance(source)
    assert followed(follower) == expected(BLOCKS[15:21])


def test_a_rank_that_is_started_again_begins_a_new_run(source: Source, path: Path) -> None:
    follower = Follower(9)
    follower.advance(source)
    before = follower.profile().spans["run"][0]
    path.write_text(header(pid=8, unix_ns=2 * 10**18) + "".join(LINES[:3]))
    assert follower.advance(source)
    spans = follower.profile().spans
    assert spans["start_ns"].to_list() == [2 * 10**18 + block.start_ns for block in BLOCKS[:3]]
    assert spans["run"].unique().to_list() == [before + 1]


@pytest.mark.parametrize("more", [0, 5, 30])
def test_another_start_whose_last_lines_are_the_same(source: Source, path: Path, more: int) -> None:
    """The blocks before them are others, and the file is as long as before, or longer."""
    follower = Follower(9)
    follower.advance(source)
    later = [generate.line(block, block.start_ns + 7, "h") for block in BLOCKS[:4]] + LINES[4 : 20 + more]
    path.write_text(header(pid=8) + "".join(later))
    follower.advance(source)
    wanted = [(*row[:2], row[2] + 7 * (n < 4)) for n, row in enumerate(expected(BLOCKS[: 20 + more]))]
    assert followed(follower) == wanted[-len(last(BLOCKS[: 20 + more], 9)) :]


def test_a_copy_that_is_made_anew_says_nothing_twice(source: Source, path: Path) -> None:
    follower = Follower(9)
    follower.advance(source)
    path.write_text(header() + "".join(LINES[:10]))
    follower.advance(source)
    assert followed(follower) == expected(BLOCKS[:10])
    shutil.copy(path, path.with_name("copy"))
    path.write_text(header() + "".join(LINES[:30]))
    follower.advance(source)
    assert followed(follower) == expected(BLOCKS[:30])


def test_a_rank_that_was_started_on_another_machine(source: Source, path: Path) -> None:
    """Its older file is still there."""
    elsewhere = path.with_name("rank0-elsewhere.blocks")
    elsewhere.write_text(header(pid=9, unix_ns=3 * 10**18) + LINES[0])
    follower = Follower(9)
    for result in find(path.parent).sources:
        follower.advance(result)
    profile = follower.profile()
    assert profile.ranks["source"].to_list() == [str(elsewhere)]
    assert profile.spans["start_ns"].to_list() == [3 * 10**18]


def test_a_file_without_a_header_or_that_is_gone(source: Source, path: Path) -> None:
    follower = Follower(9)
    path.write_text(LINES[0])
    with pytest.raises(SourceError, match="no header of the recorder in this file"):
        follower.advance(source)
    path.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        follower.advance(source)
    assert follower.profile().spans.is_empty()


def test_malformed_lines_are_counted_once(source: Source, path: Path) -> None:
    path.write_text(header() + LINES[0] + "F,,\n" + LINES[1])
    follower = Follower(9)
    for _ in range(3):
        follower.advance(source)
        assert [(note.code, note.where, note.count) for note in follower.profile().notes] == [
            ("records-malformed", f"{path}:3", 1)
        ]
