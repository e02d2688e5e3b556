"""The recorder's files: what was recorded comes back, whatever became of the file."""

import json
import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from samples.generators import recorder as generate
from samples.generators.pipeline import Block
from tests.conftest import Cli
from tests.support.one_source import read
from tests.support.texts import CHARACTERS
from trace_export import load
from trace_export.errors import SourceError
from trace_export.model import Declared, Profile
from trace_export.sources.find import find
from trace_export.sources.recorder.lines import Scanner, WrongVersion, header
from trace_export.sources.source import ReadOptions, Source

NUMBERS = ["kind", "step", "microbatch", "chunk", "microbatch_b", "chunk_b"]
HEADER = generate.header(host="node0", boot="b", pid=7, unix_ns=10**18, clock_ns=500, rank=3)
BLOCKS = (
    Block(3, 5, "F", 0, 1000, 1100, 0),
    Block(3, 5, "FB", 1, 1100, 1300, 0, 0, 1),
    Block(3, 5, "OPT", None, 1300, 1400),
)
TEXT = HEADER + "".join(generate.line(block, block.start_ns, "h") for block in BLOCKS)


def rows(blocks: list[Block] | tuple[Block, ...]) -> list[tuple[object, ...]]:
    return [(b.kind, b.step, b.microbatch, b.chunk, b.microbatch_b, b.chunk_b, b.start_ns, b.end_ns) for b in blocks]


def put(folder: Path, text: str | bytes, name: str = "rank3.blocks") -> Source:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    (source,) = find(folder).sources
    return source


def read_text(folder: Path, text: str | bytes) -> Profile:
    return read(put(folder, text), ReadOptions())


def spans(profile: Profile) -> list[tuple[object, ...]]:
    """As `rows`, on the recorder's clock."""
    times = (pl.col(end) - 10**18 + 500 for end in ("start_ns", "end_ns"))
    return profile.spans.select(*NUMBERS, *times).rows()


def test_a_run_on_two_hosts_equals_what_was_simulated(tmp_path: Path) -> None:
    truth = generate.write(tmp_path, clock_errors_ns=(0, 2_400_000))
    run = load(tmp_path).align()
    assert [note for note in run.notes if note.level == "warning"] == []
    result = run.spans.sort("start_ns", "rank")
    expected = pl.DataFrame([(b.rank, *row) for b, row in zip(truth, rows(truth), strict=True)], orient="row")
    expected.columns = ["rank", *NUMBERS, "start_ns", "end_ns"]
    both = result.join(expected, on=["rank", "kind", "step", "microbatch", "chunk"], nulls_equal=True, suffix="_true")
    assert both.height == result.height == len(truth)
    length = pl.col("end_ns") - pl.col("start_ns") - pl.col("end_ns_true") + pl.col("start_ns_true")
    assert both.select(length.abs().max()).item() <= 1
    error = run.clocks["sd_ns"].max()
    assert error is not None
    shift = (both["start_ns"] - both["start_ns_true"]).abs().max()
    assert isinstance(shift, int)
    assert shift < 50_000  # from the order of blocks, whose messages take 600 µs
    assert run.ranks["stage_origin"].unique().to_list() == ["recorded"]
    assert run.hosts["label"].to_list() == ["node0", "node1"]


def test_what_a_header_says(tmp_path: Path) -> None:
    facts = {"world": 8, "device": 1, "stage": 1, "dp": 1, "tp": 0, "cp": 0}
    sizes = {"pp_size": 2, "dp_size": 2, "tp_size": 2, "cp_size": 1}
    later = HEADER.replace("}", "," + json.dumps({**facts, **sizes})[1:])
    profile = read_text(tmp_path, TEXT + later)
    (rank,) = profile.ranks.rows(named=True)
    expected = {"rank": 3, "host": "node0@b", **facts, "rank_origin": "recorded", "stage_origin": "recorded"}
    del expected["world"]
    assert expected.items() <= rank.items()
    assert profile.declared == Declared(pp=2, dp=2, tp=2, cp=1, world=8)
    assert profile.spans["origin"].unique().to_list() == ["host"]
    assert spans(profile) == rows(BLOCKS)


def test_a_file_cut_at_any_byte_loses_at_most_its_last_block(tmp_path: Path) -> None:
    ends = [match.end() for match in re.finditer(r",[hd]", TEXT)]
    for cut in range(len(HEADER), len(TEXT) + 1):
        whole = [block for block, end in zip(BLOCKS, ends, strict=True) if end <= cut]
        if not whole:
            with pytest.raises(SourceError, match="no block in this file"):
                read_text(tmp_path, TEXT[:cut])
            continue
        profile = read_text(tmp_path, TEXT[:cut])
        assert spans(profile) == rows(whole), cut
        cleanly = cut in ends or TEXT[cut - 1] == "\n"
        assert [note.code for note in profile.notes] == ([] if cleanly else ["records-malformed"]), cut


_LINE = re.compile(r"(F|B|W|FB|OPT)(,\d{0,9}){5},\d{1,18},\d{1,18},[hd]")
fields = st.text("0123456789", max_size=11) | st.sampled_from(["", "-1", "x", "1.5", "1e3", '"', "\x00", "é"])
lines = st.tuples(
    st.sampled_from(["F", "B", "W", "FB", "OPT", "", "f", "STEP"]), *[fields] * 7, st.sampled_from(["h", "d", "", "x"])
).map(",".join)


@settings(max_examples=30)
@given(
    st.lists(lines | st.text(alphabet=st.characters(exclude_characters="\n#", exclude_categories=["Cs"]), max_size=30))
)
def test_only_whole_lines_count(written: list[str]) -> None:
    scanner = Scanner(Path("rank3.blocks"))
    result = scanner.take("".join(line + "\n" for line in written).encode())
    valid = [line for line in written if _LINE.fullmatch(line)]
    text = [
        ",".join("" if v is None else str(v) for v in row[:-1]) + ("," + {"host": "h", "device": "d"}[row[-1]])
        for row in result.rows()
    ]
    unpadded = [",".join(str(int(f)) if f.isdecimal() else f for f in line.split(",")) for line in valid]
    assert text == unpadded
    assert scanner.malformed == sum(1 for line in written if line) - len(valid)
    first = next((n for n, line in enumerate(written, 1) if line and not _LINE.fullmatch(line)), 0)
    assert scanner.first_malformed == first


@pytest.mark.parametrize(
    ("start", "length", "valid"),
    [(0, 0, 1), (2**61, 2**61, 1), (2**61 + 1, 0, 0), (0, 2**61 + 1, 0), (-1, 1, 0), (1, -1, 0)],
)
def test_a_block_with_times_out_of_range_is_malformed(start: int, length: int, valid: int) -> None:
    """Below 0, or so late or long that the end may not fit into 64 bits."""
    scanner = Scanner(Path("rank3.blocks"))
    result = scanner.take(f"F,5,0,0,,,{start},{length},h\n".encode())
    assert (result.height, scanner.malformed) == (valid, 1 - valid)


def test_half_a_line_before_others_is_named(tmp_path: Path) -> None:
    half = generate.line(BLOCKS[0], 1000, "h")[:-4] + "\n"
    profile = read_text(tmp_path, TEXT + half + HEADER + generate.line(BLOCKS[2], 1300, "h"))
    assert [(note.code, note.where, note.count) for note in profile.notes] == [
        ("records-malformed", f"{tmp_path}/rank3.blocks:5", 1)
    ]
    assert spans(profile) == [*rows(BLOCKS), *rows(BLOCKS[2:])]


def test_what_was_recorded_before_the_limit_was_reached(tmp_path: Path) -> None:
    generate.write(tmp_path, stages=1, hosts=1)
    path = tmp_path / "rank0.blocks"
    (source,) = find(tmp_path).sources
    whole = read(source, ReadOptions())
    head, *lines = path.read_text().splitlines(keepends=True)
    (tmp_path / "rank0.blocks.earlier").write_text(head + "".join(lines[:30]))
    path.write_text(head + "".join(lines[30:]))
    (source,) = find(tmp_path).sources
    rotated = read(source, ReadOptions())
    assert_frame_equal(rotated.spans, whole.spans)
    assert rotated.notes == ()


def test_an_earlier_start_of_the_ranks_is_a_run_of_its_own(tmp_path: Path) -> None:
    """An hour before: the recorder keeps what it finds as it starts. One rank was recorded for the first time."""
    truth = generate.write(tmp_path, stages=3, hosts=1)
    hour = 3600 * 10**9
    for path in sorted(tmp_path.glob("rank[12].blocks")):
        head, *lines = path.read_text().splitlines(keepends=True)
        facts = json.loads(head.removeprefix("#"))
        before = {**facts, "pid": facts["pid"] + 900, "unix_ns": facts["unix_ns"] - hour}
        path.with_name(f"{path.name}.earlier").write_text(
            "".join([f"#{json.dumps(before, separators=(',', ':'))}\n", *lines])
        )
    newest, earlier = load(tmp_path, jobs=1), load(tmp_path, jobs=1, run=1)
    assert [note.code for note in newest.notes if note.code.startswith("run")] == ["runs-not-read"]
    columns = ["rank", "kind", "start_ns", "end_ns"]
    times = [sorted(run.spans.select(columns).rows()) for run in (newest, earlier)]
    assert times[0] == sorted((b.rank, b.kind, b.start_ns, b.end_ns) for b in truth)
    assert times[1] == [(rank, kind, start - hour, end - hour) for rank, kind, start, end in times[0] if rank]


def test_a_beginning(tmp_path: Path) -> None:
    lines = [generate.line(BLOCKS[0], 1000 * n, "h") for n in range(20_000)]
    source = put(tmp_path, HEADER + "".join(lines))
    begun = read(source, ReadOptions(beginning=1))
    assert 0 < begun.spans.height < 20_000
    assert begun.spans.equals(read(source, ReadOptions()).spans.head(begun.spans.height))
    assert begun.recorded_until == {str(source.path): 10**18 - 500 + 19_999_000 + 100}
    assert read(source, ReadOptions(beginning=9)).recorded_until == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; its export or copy did not finish"),
        ("F,5,0,0,,,1,1,h\n", "no header of the recorder in this file"),
        (HEADER, "no block in this file"),
        (TEXT.replace("blocks\":1", "blocks\":2"), "was written in version 2 of the format"),
        (TEXT.replace("blocks\":1", "blocks\":null"), "was written in an unknown version of the format"),
        (TEXT + HEADER.replace('"rank":3', '"rank":4'), "holds the blocks of several processes"),
        (TEXT + HEADER.replace('"pid":7', '"pid":8'), "holds the blocks of several processes"),
        (TEXT.replace("10", "é").encode("latin-1"), "no header of the recorder in this file"),
        (TEXT + "x" * 100_000, "holds a line of more than 65,536 bytes"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read(text: str | bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=re.escape(says)) as error:
        read_text(tmp_path, text)
    assert str(tmp_path / "rank3.blocks") in str(error.value)


numbers = (
    st.integers(-(2**70), 2**70) | st.none() | st.text(CHARACTERS, max_size=3) | st.lists(st.integers(), max_size=1)
)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["host", "boot", "pid", "unix_ns", "clock_ns", "rank", "stage"]), numbers))
def test_a_header_is_read_or_is_none(facts: dict[str, object]) -> None:
    sound = {"host": "a", "boot": None, "pid": 1, "unix_ns": 1, "clock_ns": 1}
    result = header(generate.header(**(sound | facts)).encode())
    if result is not None:
        assert 0 <= result.unix_ns < 2**62
        assert result.rank is None or 0 <= result.rank < 10**7
    assert header(generate.header(**sound).encode()) is not None
    with pytest.raises(WrongVersion):
        header(generate.header(**(sound | facts)).replace('blocks":1', 'blocks":2').encode())


def test_any_file_that_begins_so_is_one(tmp_path: Path, run_cli: Cli) -> None:
    (tmp_path / "other.blocks").write_text("minecraft\n")
    result = run_cli("--log_dir", tmp_path)
    assert result.returncode == 1
    assert "other.blocks is no file of the recorder" in result.stderr
    source = put(tmp_path, TEXT, "kept-by-somebody.blocks")
    assert (source.rank, source.rank_origin) == (3, "recorded")


def test_ranks_that_nobody_named_are_numbered_in_order(tmp_path: Path) -> None:
    for pid in (11, 12):
        anonymous = TEXT.replace(',"rank":3', "").replace('"pid":7', f'"pid":{pid}').replace("1000,", f"10{pid},")
        (tmp_path / f"process{pid}.blocks").write_text(anonymous)
    run = load(tmp_path)
    assert run.ranks.select("rank", "rank_origin").rows() == [(0, "assumed"), (1, "assumed")]
    assert "rank-numbers-assumed" in {note.code for note in run.notes}
