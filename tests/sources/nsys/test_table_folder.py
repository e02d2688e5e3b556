"""Exports as folders of Parquet or Arrow files: the same profile as of the SQLite file with the same tables."""

import random
from pathlib import Path

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from samples.generators import nsys as generator
from samples.generators import unmarked
from samples.generators.nsys_export import Export, as_folder
from tests.faults.mutate import flip
from tests.sources.nsys.test_row_order import shuffled
from tests.support.one_source import read
from trace_export.errors import SourceError
from trace_export.model import TABLES, Profile
from trace_export.sources.find import find
from trace_export.sources.nsys import reader, table_folder
from trace_export.sources.nsys.reader import read_tasks
from trace_export.sources.source import ReadOptions, Source, TaskRequest


def session(seed: int) -> Export:
    """Two ranks of a made-up run in one session, with payloads and copies."""
    export, chance = Export(environment="RANK=3"), random.Random(seed)
    ranks = [generator.Rank(export, rank, 0) for rank in range(2)]
    generator.fill(ranks, generator.blocks_of(2, 3, 1, chance), chance)
    export.copy(ranks[0].process, 5, 9, 1)
    payload = export.payload(7, 1, communicator=5, bytes=9, peer=1)
    export.range(ranks[0].process, 40_000_000, 40_000_005, "ncclAllReduce", registered=True, domain=7, payload=payload)
    return export


def tables(profile: Profile) -> list[pl.DataFrame]:
    return [getattr(profile, name).drop("source", strict=False) for name in TABLES]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@settings(max_examples=2, phases=[Phase.generate])
@given(seed=st.integers(0, 1 << 20), rows=st.sampled_from([7, 1 << 18]))
def test_the_profile_is_that_of_the_database(
    suffix: str, seed: int, rows: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("tables")
    whole = read(Source("nsys", session(seed).write(home / "x.sqlite"), "here"), ReadOptions())
    folder = session(seed).write_folder(home / "logs" / "x_pqtdir", suffix)
    (source,) = find(home / "logs").sources
    assert (source.kind, source.path) == ("nsys", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_folder, "ROWS", rows)
        profile = read(source, ReadOptions())
    for one, other in zip(tables(profile), tables(whole), strict=True):
        assert one.equals(other)
    assert [n.code for n in profile.notes] == [n.code for n in whole.notes]
    numbers = dict(profile.ranks.select("process", "rank").iter_rows())
    made = [
        read_tasks(TaskRequest(of, "kernels", numbers, None, home))
        for of in (source, Source("nsys", home / "x.sqlite", "here"))
    ]
    for one, other in zip(*made, strict=True):
        names = {"name": pl.String}
        assert pl.read_ipc(one.path).cast(names).equals(pl.read_ipc(other.path).cast(names))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "suffix"), [
    *((name, ".parquet") for name in ("infer", "host_ranges", "beginning", "unmarked", "beginning, shuffled")),
    ("infer", ".arrow"), ("beginning", ".arrow"),
])  # fmt: skip
def test_whatever_is_asked_for_is_that_of_the_database(
    suffix: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "unmarked":
        unmarked.write(tmp_path, unmarked.Program(operators=True))
    else:
        session(3).write(tmp_path / "node0.sqlite")
    if name.endswith("shuffled"):
        shuffled(tmp_path / "node0.sqlite", random.Random(3))
    piece, rows = (500, 211) if name == "unmarked" else (20, 7)  # it has thousands of rows
    monkeypatch.setattr(reader, "PIECE_ROWS", piece)
    monkeypatch.setattr(table_folder, "ROWS", rows)
    folder = as_folder(tmp_path / "node0.sqlite", tmp_path / "node0_tables", suffix)
    options = ReadOptions(
        infer="only" if name == "infer" else "auto",
        host_ranges=name == "host_ranges",
        beginning=name.startswith("beginning"),
    )
    result: list[Profile | str] = []
    for path in (tmp_path / "node0.sqlite", folder):
        try:
            result.append(read(Source("nsys", path, "here"), options))
        except SourceError as error:
            result.append(str(error).removeprefix(str(path)))
    whole, profile = result
    if isinstance(whole, str) or isinstance(profile, str):
        assert name == "infer"
        assert profile == whole
        return
    assert [*profile.recorded_until.values()] == [*whole.recorded_until.values()]
    for one, other in zip(tables(profile), tables(whole), strict=True):
        assert one.equals(other)


def test_a_damaged_table_is_one_sentence(tmp_path: Path) -> None:
    folder = session(1).write_folder(tmp_path / "x", ".parquet")
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 and no more")
    (source,) = find(tmp_path).sources
    with pytest.raises(SourceError, match=r"x: NVTX_EVENTS\.parquet cannot be read as a table of Nsight Systems"):
        read(source, ReadOptions())


@pytest.mark.parametrize("name", ["START", 'a"); DROP TABLE x; --', "n\0ul", ""])
def test_columns_that_no_export_has_are_passed_over(name: str, tmp_path: Path) -> None:
    """A NUL in a name would end the process, without an exception; SQLite takes no name twice."""
    folder = session(1).write_folder(tmp_path / "x", ".parquet")
    before = read(Source("nsys", folder, "here"), ReadOptions())
    for path in folder.glob("*.parquet"):
        pl.read_parquet(path).with_columns(pl.lit(1).alias(name)).write_parquet(path)
    assert read(Source("nsys", folder, "here"), ReadOptions()).spans.equals(before.spans)


def test_tables_with_flipped_bits_are_read_or_refused(tmp_path: Path) -> None:
    folder = session(1).write_folder(tmp_path / "x", ".parquet")
    path, chance = folder / "NVTX_EVENTS.parquet", random.Random(1)
    content, refused = path.read_bytes(), 0
    for _ in range(30):
        path.write_bytes(flip(content, chance))
        try:
            read(Source("nsys", folder, "here"), ReadOptions())
        except SourceError as error:
            refused += 1
            assert len(str(error)) < len(str(folder)) + 300
    assert refused


def test_a_table_that_no_database_takes_is_one_sentence(tmp_path: Path) -> None:
    folder = session(1).write_folder(tmp_path / "x", ".parquet")
    pl.DataFrame({"other": [1]}).write_parquet(folder / "NVTX_EVENTS.parquet")
    with pytest.raises(SourceError, match=r"x: NVTX_EVENTS cannot be put into a database; export it again"):
        read(Source("nsys", folder, "here"), ReadOptions())


def test_whole_numbers_become_signed(tmp_path: Path) -> None:
    """Ids with the highest bit set are negative in SQLite."""
    folder = session(1).write_folder(tmp_path / "x", ".parquet")
    before = read(Source("nsys", folder, "here"), ReadOptions())
    for path in folder.glob("*_EVENTS.parquet"):
        frame = pl.read_parquet(path)
        frame.with_columns(pl.col("globalTid").cast(pl.UInt64), pl.col("eventType").cast(pl.UInt8)).write_parquet(path)
    assert read(Source("nsys", folder, "here"), ReadOptions()).spans.equals(before.spans)
