"""Thousands of broken inputs for each reader: tables or one sentence, never anything else.

`--mutants 2000` is what CI runs; less by default, because each of them is a whole run of a reader.
"""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path

import pytest

from tests.faults.inputs import INPUTS
from tests.faults.mutate import mutant
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

LONGEST_S = 10.0
MEMORY_KB = 400_000
"""What a run may add to the memory of the process: a length or count in a file must never be believed."""

KINDS = ["F", "B", "W", "FB", "OPT"]


def check(profile: Profile) -> None:
    """Whatever the input was, what comes out keeps the promises of the tables."""
    profile.validate()
    spans, ranks = profile.spans, profile.ranks
    assert not ranks["rank"].is_duplicated().any()
    assert ranks["rank"].null_count() == ranks["host"].null_count() == 0
    assert set(ranks["host"]) <= set(profile.hosts["host"])
    assert set(spans["rank"]) <= set(ranks["rank"])
    assert spans["start_ns"].null_count() == spans["end_ns"].null_count() == 0
    assert (spans["end_ns"] >= spans["start_ns"]).all()
    assert spans["kind"].drop_nulls().is_in(KINDS).all()
    for column in ("microbatch", "chunk"):
        assert (spans[column].drop_nulls() >= 0).all()


@pytest.mark.parametrize("kind", INPUTS)
def test_a_reader_survives_every_mutant(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    mutants = request.config.getoption("--mutants")
    made = INPUTS[kind]
    source = made.source(tmp_path)
    check(read(source, ReadOptions()))
    sound = {name: next(tmp_path.rglob(name)) for name in made.files}
    content = {name: path.read_bytes() for name, path in sound.items()}
    files = sorted(tmp_path.rglob("*"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted = refused = 0
    for seed in range(mutants):
        chance = random.Random(seed)
        name = chance.choice((made.files[0], *made.files))  # most of them break what matters most
        broken = mutant(content[name], chance)
        sound[name].write_bytes(broken)
        started = time.monotonic()
        try:
            for found in find(tmp_path).sources:
                check(read(found, ReadOptions()))
                accepted += 1
        except SourceError as error:
            assert str(error).isprintable()
            assert str(sound[name].parent) in str(error)
            refused += 1
        except BaseException as error:
            raise AssertionError(f"{kind}, seed {seed}: {type(error).__name__}") from error
        assert time.monotonic() - started < LONGEST_S, f"{kind}, seed {seed}: hangs"
        assert sound[name].read_bytes() == broken, f"{kind}, seed {seed}: the input was changed"
        assert sorted(tmp_path.rglob("*")) == files, f"{kind}, seed {seed}: files came or went"
        sound[name].write_bytes(content[name])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEMORY_KB, f"{kind}: the process grew by {grown} kB"
    assert accepted > mutants // 20  # else the mutants are too coarse to reach the reader's own code
    assert refused
