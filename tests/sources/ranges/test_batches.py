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
from tests.support.same_profiles import assert_same
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.find import find
from trace_export.sources.formats import of_kind
from trace_export.sources.source import ReadOptions, Source

DIALECTS = (generate.Dialect(), generate.Torch(), generate.DeepSpeed(), generate.Plain(), generate.Mapping())
PROGRAM = unmarked.Program(microbatches=4, layers=1)
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


def nsys(folder: Path) -> None:
    for number, dialect in enumerate(DIALECTS):
        chance, place = random.Random(3), folder / str(number)
        blocks = generate.blocks_of(4, 6, 4, chance, split=dialect.split)
        generate.record(place, blocks, 2, (0, 7_000), chance, dialect)
    long_runs.nsys(folder / "long", 60)
    for number, statements in enumerate(ODD):
        long_runs.nsys(folder / f"odd{number}", 60, 2)
        with changing(folder / f"odd{number}" / "rank0.sqlite") as db:
            for statement in statements:
                db.execute(statement)
            db.commit()
    unmarked.write(folder / "unmarked", PROGRAM)


def rocpd(folder: Path) -> None:
    for schema in (3, 4):
        long_runs.rocpd(folder / f"long{schema}", 60, schema=schema)
        long_runs.rocpd(folder / f"short{schema}", 1, schema=schema)
    unmarked.write(folder / "unmarked", PROGRAM, rocpd="db")


def kineto(folder: Path) -> None:
    long_runs.kineto(folder / "long", 20)
    long_runs.kineto(folder / "short", 1)
    unmarked.write(folder / "unmarked", PROGRAM, kineto=True)


MAKERS: dict[str, Callable[[Path], None]] = {"nsys": nsys, "rocpd": rocpd, "kineto": kineto}


@pytest.fixture(scope="module", params=MAKERS)
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


@pytest.mark.parametrize(
    "options",
    [
        ReadOptions(beginning=1),
        ReadOptions(beginning=1, host_ranges=True),
        ReadOptions(beginning=2),
        ReadOptions(),
        ReadOptions(infer="only"),
        ReadOptions(markers=("F3=>F", "nothing=>B")),
    ],
    ids=["beginnings", "of the host", "more", "whole", "by launches", "by rules"],
)
def test_as_each_alone(sources: list[Source], options: ReadOptions) -> None:
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
