"""Text in UTF-16 is read as in UTF-8: PowerShell writes it where it redirects output, and Excel as "Unicode Text"."""

from pathlib import Path

import polars as pl
import pytest

import trace_export
from samples.generators.paddle import Job, write_logs, write_records
from tests.support.profiles import profile, span
from tests.support.rows import crossed
from trace_export.writers.tables import write_csv

COLUMNS = ["rank", "step", "kind", "microbatch", "start_ns", "end_ns"]


def written(folder: Path, samples: Path) -> dict[str, Path]:
    """What is given to the program, by format."""
    write_logs(folder / "logs", Job(2, 4))
    write_records(folder / "records", Job(2, 4, range(2)))
    (folder / "recorder").mkdir()
    for path in (samples / "recorder" / "two_hosts").glob("*.blocks"):
        (folder / "recorder" / path.name).write_bytes(path.read_bytes())
    write_csv(profile([span(0, "F", 0, 10, 20), span(0, "B", 0, 30, 50)], {0: 0}), folder / "spans.csv")
    return {name.partition(".")[0]: folder / name for name in ("logs", "records", "recorder", "spans.csv")}


@pytest.mark.parametrize(
    ("encoding", "form"),
    crossed(["utf-16", "utf-16-be with a mark", "utf-16-le"], ["logs", "records", "recorder", "spans"]),
)
def test_it_is_read_as_in_utf_8(form: str, encoding: str, samples: Path, tmp_path: Path) -> None:
    given = written(tmp_path, samples)[form]
    wanted = trace_export.load(given).spans.select(COLUMNS)
    name, _, mark = encoding.partition(" ")
    for path in given.iterdir() if given.is_dir() else [given]:
        text = ("\ufeff" if mark else "") + path.read_text(encoding="utf-8")
        path.write_bytes(text.encode(name))
    actual = trace_export.load(given).spans.select(COLUMNS)
    assert actual.height
    assert actual.sort(pl.all()).equals(wanted.sort(pl.all()))
