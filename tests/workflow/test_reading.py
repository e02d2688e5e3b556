"""What becomes of results that are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from trace_export import load
from trace_export.model import Profile
from trace_export.workflow import reading


def torn(profile: Profile) -> Profile:
    return replace(profile, spans=profile.spans.with_columns(pl.col("start_ns").cast(pl.Float64)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda profile: None, "returned NoneType, which is no valid profile"),
        (lambda profile: "a profile", "returned str, which is no valid profile"),
        (torn, "returned Profile, which is no valid profile (table spans: "),
    ],
)
def test_a_reader_that_returns_no_profile_has_failed(
    damage: object, words: str, samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never silently fewer ranks."""
    read = reading.read

    def damaged(source: object, options: object) -> object:
        found = read(source, options)  # type: ignore[arg-type]
        return damage(found) if source.path.name == "workerlog.2" else found  # type: ignore[attr-defined, operator]

    monkeypatch.setattr(reading, "read", damaged)
    run = load(samples / "paddle" / "single", jobs=1)
    assert run.ranks["rank"].sort().to_list() == [0, 1, 3]
    (failure,) = run.failures
    assert str(failure).startswith(f"{samples / 'paddle' / 'single' / 'workerlog.2'}: its reader {words}")
