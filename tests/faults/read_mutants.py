"""Reads mutants of inputs, each within a bound on processor time that the system enforces, and draws some of them.

`python -m tests.faults.read_mutants KIND,KIND COUNT FOLDER` prints the kind of input and the number of each before it
is read, and at the end of a kind how many were accepted and refused.
"""

import random
import resource
import shutil
import sys
from pathlib import Path

import orjson

from tests.faults.inputs import INPUTS
from tests.faults.mutate import mutant
from trace_export.api import export
from trace_export.errors import SourceError, TraceExportError
from trace_export.model import Profile
from trace_export.sources.find import find
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

SECONDS = 10
"""Of processors, for one mutant; an input takes some hundredths of one."""
MEMORY_KB = 400_000
"""What a run may add to the memory of the process: a length or count in a file must never be believed."""

DRAWN = 20
"""One of this many is drawn, too: that costs as much as twenty readings."""

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


def draw(folder: Path, out: Path) -> None:
    """A broken input all the way to the files: a chart of what is sound, or one sentence, and nothing half-written."""
    files: tuple[Path, ...] = ()
    try:
        done = export(folder, out, "perfetto,chrome,csv", jobs=1, bubbles=True)
        files = done.files
        assert not [str(error) for error in done.run.failures if "internal error" in str(error)]
    except TraceExportError as error:
        assert str(error).isprintable()
        assert "internal error" not in str(error)
    assert {path for path in out.rglob("*") if path.is_file()} == set(files), "something half-written"
    for path in files:
        if path.suffix == ".json":
            orjson.loads(path.read_bytes())
    shutil.rmtree(out, ignore_errors=True)


def bound_processor_time() -> None:
    """The system ends the process (SIGXCPU) when it has used `SECONDS` more."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + SECONDS, most))


def main() -> None:
    for kind in sys.argv[1].split(","):
        folder = Path(sys.argv[3]) / kind
        folder.mkdir()
        read_all(kind, int(sys.argv[2]), folder)


def read_all(kind: str, mutants: int, folder: Path) -> None:
    made = INPUTS[kind]
    source = made.source(folder)
    check(read(source, ReadOptions()))
    sound = {name: next(folder.rglob(name)) for name in made.files}
    content = {name: path.read_bytes() for name, path in sound.items()}
    files = sorted(folder.rglob("*"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    accepted = refused = 0
    for seed in range(mutants):
        print(kind, "mutant", seed, flush=True)
        chance = random.Random(seed)
        name = chance.choice((made.files[0], *made.files))  # most of them break what matters most
        broken = mutant(content[name], chance)
        sound[name].write_bytes(broken)
        bound_processor_time()
        try:
            for result in find(folder).sources:
                check(read(result, ReadOptions()))
                accepted += 1
        except SourceError as error:
            assert str(error).isprintable()
            assert str(sound[name].parent) in str(error)
            refused += 1
        if seed % DRAWN == 0:
            draw(folder, folder.with_name(f"{kind} drawn"))
        assert sound[name].read_bytes() == broken, "the input was changed"
        assert sorted(folder.rglob("*")) == files, "files came or went"
        sound[name].write_bytes(content[name])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEMORY_KB, f"the process grew by {grown} kB"
    print(kind, "accepted", accepted, "refused", refused, flush=True)


if __name__ == "__main__":
    main()
