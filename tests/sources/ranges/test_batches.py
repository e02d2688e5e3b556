"""Many sources of ranges read at once are what each gives alone: whole or their beginnings, plain or odd."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from samples.generators import nsys as generate
from samples.generators import unmarked
from tests.support import long_runs
from tests.support.databases import changing
from tests.support.one_source import read
from tests.support.rows import crossed
from tests.support.same_profiles import assert_same
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.find import find
from trace_export.sources.formats import of_kind
from trace_export.sources.nsys import reader as nsys_reader
from trace_export.sources.rocpd import reader as rocpd_reader
from trace_export.sources.shared import chrome_json
from trace_export.sources.source import ReadOptions, Source

DIALECTS = (generate.Dialect(), generate.Torch(), generate.DeepSpeed(), generate.Plain(), generate.Mapping())
PROGRAM = unmarked.Program(stages=2, microbatches=4, layers=1)
ODD: tuple[tuple[str, ...], ...] = (
    ("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",),
    ("DELETE FROM NVTX_EVENTS WHERE text NOT LIKE 'Opt%'",),
    ('UPDATE NVTX_EVENTS SET "end" = NULL WHERE rowid = 5',),
    ("UPDATE NVTX_EVENTS SET start = -9223372036854775807 WHERE rowid = 5",),
    (
        "CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER)",
        "INSERT INTO StringIds VALUES (987654, 'pt_autograd_0')",
        f"INSERT INTO ThreadNames VALUES (987654, 0, {(77 << 24) + 1})",
    ),
)
"""Kernels or names that are missing, a range that is open or without a time, and a process without named passes."""


ROUNDS = 6
"""Of a long run, which is more than the pieces below take."""


@pytest.fixture(autouse=True)
def pieces_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beginning is a twelfth of what it usually is."""
    for module in (nsys_reader, rocpd_reader):
        monkeypatch.setattr(module, "PIECE_ROWS", module.PIECE_ROWS // 12)
    monkeypatch.setattr(chrome_json, "PIECE_BYTES", chrome_json.PIECE_BYTES // 12)


def nsys(folder: Path) -> None:
    for number, dialect in enumerate(DIALECTS):
        chance, place = random.Random(3), folder / str(number)
        blocks = generate.blocks_of(2, 4, 3, chance, split=dialect.split)
        generate.record(place, blocks, 1, (0,), chance, dialect)
    long_runs.nsys(folder / "long", ROUNDS, 2)
    for number, statements in enumerate(ODD):
        long_runs.nsys(folder / f"odd{number}", ROUNDS, 2)
        with changing(folder / f"odd{number}" / "rank0.sqlite") as db:
            for statement in statements:
                db.execute(statement)
            db.commit()
    unmarked.write(folder / "unmarked", PROGRAM)


def rocpd(folder: Path) -> None:
    for schema in (3, 4):
        long_runs.rocpd(folder / f"long{schema}", ROUNDS, 2, schema)
        long_runs.rocpd(folder / f"short{schema}", 1, 2, schema)
    unmarked.write(folder / "unmarked", PROGRAM, rocpd="db")


def kineto(folder: Path) -> None:
    long_runs.kineto(folder / "long", ROUNDS, 2)
    long_runs.kineto(folder / "short", 1, 2)
    unmarked.write(folder / "unmarked", PROGRAM, kineto=True)


MAKERS: dict[str, Callable[[Path], None]] = {"nsys": nsys, "rocpd": rocpd, "kineto": kineto}


OPTIONS = {
    "beginnings": ReadOptions(beginning=1),
    "of the host": ReadOptions(beginning=1, host_ranges=True),
    "more": ReadOptions(beginning=2),
    "whole": ReadOptions(),
    "by launches": ReadOptions(infer="only"),
    "by rules": ReadOptions(markers=("F3=>F", "nothing=>B")),
}


@pytest.fixture(scope="module")
def sources(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    folder = tmp_path_factory.mktemp(request.param)
    for name in (
        "unmarked",
        "long",
        "long3",
        "long4",
        "short",
        "short3",
        "short4",
        *(f"odd{n}" for n in range(len(ODD))),
    ):
        (folder / name).mkdir()
    MAKERS[request.param](folder)
    return list(find(folder).sources)


@pytest.mark.parametrize(("sources", "asked"), crossed(MAKERS, OPTIONS), indirect=["sources"])
def test_as_each_alone(sources: list[Source], asked: str) -> None:
    options = OPTIONS[asked]
    order = random.Random(7).sample(sources, len(sources))
    results = of_kind(sources[0].kind).load_reader().read(order, options)
    for source, result in zip(order, results, strict=True):
        try:
            expected = read(source, options)
        except SourceError as error:
            assert str(result) == str(error)
        else:
            assert isinstance(result, Profile), result
            assert_same(result, expected)
    short = [result for result in results if isinstance(result, Profile) and result.recorded_until]
    assert bool(short) == bool(options.beginning)
