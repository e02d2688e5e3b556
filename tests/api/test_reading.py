"""Which sources are read together, and what becomes of results that are not valid."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.support.same_profiles import assert_same
from trace_export import load
from trace_export import read as reading
from trace_export.model import Profile
from trace_export.sources.read import read_group
from trace_export.sources.shared.batch import Result
from trace_export.sources.source import Group, ReadOptions


def torn(profile: Profile) -> Profile:
    return replace(profile, spans=profile.spans.with_columns(pl.col("start_ns").cast(pl.Float64)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda profile: None, "returned NoneType, which is not a valid profile"),
        (lambda profile: "a profile", "returned str, which is not a valid profile"),
        (torn, "returned Profile, which is not a valid profile (table spans: "),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_reader_that_returns_no_profile_has_failed(
    damage: Callable[[Profile], object], words: str, at_once: bool, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never silently fewer ranks."""
    read = reading.read_group

    def damaged(group: Group, options: ReadOptions) -> list[object]:
        result = zip(group.sources, read(group, options), strict=True)
        return [damage(made) if s.path.name == "workerlog.2" else made for s, made in result]

    monkeypatch.setattr(reading, "read_group", damaged)
    if not at_once:
        monkeypatch.setattr(reading, "TOGETHER", 1)
    run = load(samples / "paddle" / "single", jobs=1)
    assert run.ranks["rank"].sort().to_list() == [0, 1, 3]
    (failure,) = run.failures
    assert str(failure).startswith(f"{samples / 'paddle' / 'single' / 'workerlog.2'}: its reader {words}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_small_logs_are_read_together(
    jobs: int, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are one by one, an unreadable one among them; progress counts each once."""
    for machine in range(3):
        shutil.copytree(samples / "paddle" / "single", tmp_path / f"machine{machine}")
    (tmp_path / "machine1" / "workerlog.2").write_text("nothing\n")
    monkeypatch.setattr(reading, "TOGETHER", 5)
    groups = []

    def counted(group: Group, options: ReadOptions) -> list[Result]:
        groups.append(len(group.sources))
        return read_group(group, options)

    if jobs == 1:  # a function in a test is not sent to another process
        monkeypatch.setattr(reading, "read_group", counted)
    done: list[tuple[str, int, int]] = []
    run = load(tmp_path, jobs=jobs, progress=lambda *step: done.append(step))
    assert groups == ([5, 5, 2] if jobs == 1 else [])
    assert [n for what, n, _ in done if what == "reading"] == list(range(13))
    monkeypatch.setattr(reading, "TOGETHER", 1)
    alone = load(tmp_path, jobs=1)
    assert [str(error) for error in run.failures] == [str(error) for error in alone.failures]
    assert len(run.failures) == 1
    assert_same(run.profile, alone.profile)
