"""One damaged source among several: the others come out exactly as each does alone, and it with its own error."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.faults.inputs import INPUTS
from tests.support import long_runs
from tests.support.rows import crossed
from tests.support.same_profiles import assert_same
from trace_export.errors import SourceError, TraceExportError
from trace_export.model import Profile
from trace_export.progress import silent
from trace_export.read import LoadOptions, read_each
from trace_export.sources.find import find
from trace_export.sources.formats import FORMATS
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions, Source

COUNT = 4
DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "other bytes": lambda path: path.write_bytes(b"no profile\x00\xff" * 40),
    "gone": lambda path: path.unlink(),
}
PLACES = (0, 2, 3)
"""The damaged one is the first, one in the middle or the last."""
LONG: dict[str, Callable[[Path], None]] = {
    "nsys": lambda folder: long_runs.nsys(folder, 60, COUNT),
    "rocpd": lambda folder: long_runs.rocpd(folder, 60, COUNT),
    "kineto": lambda folder: long_runs.kineto(folder, 20, COUNT),
    "ascend": lambda folder: long_runs.ascend(folder, 60, COUNT),
    "paddle": lambda folder: long_runs.paddle(folder, 120, COUNT),
}
"""So long that a beginning is not all of a source."""


def alone(source: Source, options: ReadOptions) -> Profile | SourceError:
    try:
        return read(source, options)
    except SourceError as error:
        return error


def assert_as_alone(sources: list[Source], options: ReadOptions) -> list[Profile | TraceExportError]:
    """What each of the sources, read with the others, gives is what it gives alone."""
    folder = sources[0].path.parent
    actual = read_each(sources, LoadOptions(folder, read=options, jobs=1), silent)
    for source, result in zip(sources, actual, strict=True):
        expected = alone(source, options)
        if isinstance(expected, Profile):
            assert isinstance(result, Profile), result
            assert_same(result, expected)
        else:
            assert str(result) == str(expected)
    return actual


def test_every_format_is_here() -> None:
    assert set(INPUTS) == {row.kind for row in FORMATS}
    assert set(LONG) <= set(INPUTS)


@pytest.mark.parametrize(("kind", "damage", "place"), crossed(INPUTS, DAMAGES, PLACES))
def test_sources_read_whole(kind: str, damage: str, place: int, tmp_path: Path, run_cli: Cli) -> None:
    for number in range(COUNT):
        (folder := tmp_path / "run" / f"node{number}").mkdir(parents=True)
        INPUTS[kind].make(folder)
    sources = list(find(tmp_path / "run").sources)
    broken = sources[place].path
    DAMAGES[damage](broken / INPUTS[kind].files[0] if broken.is_dir() else broken)
    actual = assert_as_alone(sources, ReadOptions())
    others = [result for number, result in enumerate(actual) if number != place]
    assert len(others) == COUNT - 1
    assert all(isinstance(result, Profile) and result.spans.height for result in others)
    ended = run_cli("export", tmp_path / "run", "--out", tmp_path / "trace.json")
    still = {source.path for source in find(tmp_path / "run").sources}
    if broken in still and isinstance(actual[place], TraceExportError):
        assert ended.returncode == 3
        assert str(broken) in ended.stderr


@pytest.mark.parametrize(("kind", "damage", "place"), crossed(LONG, DAMAGES, PLACES))
def test_beginnings(kind: str, damage: str, place: int, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    LONG[kind](tmp_path / "run")
    sources = list(find(tmp_path / "run").sources)
    DAMAGES[damage](sources[place].path)
    actual = assert_as_alone(sources, ReadOptions(beginning=1))
    others = [result for number, result in enumerate(actual) if number != place]
    assert len(others) == COUNT - 1
    assert all(isinstance(result, Profile) and result.recorded_until for result in others)
