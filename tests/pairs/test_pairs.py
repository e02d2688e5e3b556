"""Every two traits of an input, options or both together, held against what the simulated job did."""

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

from tests.pairs.choices import ELSEWHERE, EXPORT, PICTURE, REPORT, Values, asked, cut, left, words
from tests.pairs.covering import Row, covering
from tests.pairs.inputs import TRAITS, Input, can_be
from tests.pairs.oracles import in_picture, of_traces, one_sentence, same_blocks
from tests.support.command import command
from tests.support.schemas import DOCUMENTS
from trace_export.cli.commands import command as made

FAST, APART = 4, 7
"""So many rows, so far apart, are in every run; the others with --slow."""
CLOCKS_NS = 10_000
"""What alignment may move a host whose clock is right: the bound that it states is below this."""


ROWS: dict[str, Callable[[], Iterator[Row]]] = {
    "test_a_chart_has_the_blocks_of_the_job": lambda: rows(EXPORT),
    "test_the_commands_agree_with_the_job_and_with_each_other": lambda: rows(REPORT),
    # The oracle of pictures expects one block at a time in a row.
    "test_a_picture_has_the_blocks_of_the_job": lambda: rows(PICTURE, overlap=(0,)),
    "test_what_does_not_matter_changes_nothing": lambda: covering({**TRAITS, "--jobs": ("1", "2")}, 2, can_be),
}
"""The rows of each test."""


def rows(options: dict[str, Values], **traits: tuple[object, ...]) -> Iterator[Row]:
    """Rows of all pairs of traits and options; `traits` in place of those of `TRAITS`."""
    return covering({**TRAITS, **traits, **options}, 1, lambda row: can_be(row) and asked(row))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if drawn := ROWS.get(metafunc.function.__name__):
        wanted = (None,) if metafunc.config.getoption("--slow") else (0, FAST * APART, APART)
        metafunc.parametrize("row", list(islice(drawn(), *wanted)), ids=count())


def document(text: str) -> dict[str, Any]:
    """The JSON document, which is as the type of its command says."""
    result: dict[str, Any] = json.loads(text)
    msgspec.convert(result, DOCUMENTS[result["document"]])
    return result


def test_a_chart_has_the_blocks_of_the_job(row: Row, tmp_path: Path) -> None:
    """In the table, in the Chrome trace and in the Perfetto trace: each block of the selection once, at its time."""
    given = Input.of(row)
    given.write(tmp_path / "in")
    options = [*given.options, *words(row, EXPORT, given.host)]
    done = command("export", "in", "--format", "csv,chrome,perfetto", "--out", "out", *options, cwd=tmp_path)
    one_sentence(done)
    wanted = left(given.truth, row)
    assert (done.returncode == 0) == (len(wanted) > 0), done.stderr
    if done.returncode:
        return
    table = pl.read_csv(tmp_path / "out" / "pipeline_profile.csv", infer_schema_length=None)
    aligned = given.job.hosts > 1 and row["--align"] != "none"
    same_blocks(table, wanted, given.error_ns + (CLOCKS_NS if aligned else 0))
    for ending in ("json", "pftrace"):
        drawn = of_traces(sorted((tmp_path / "out").glob(f"pipeline_profile*.{ending}*")))
        shown = table if row["--tracks"] else table.filter(pl.col("rank").is_in(drawn["rank"].unique().implode()))
        same_blocks(drawn, shown, 0)
        assert set(shown["stage"]) == set(table["stage"])


def test_the_commands_agree_with_the_job_and_with_each_other(row: Row, tmp_path: Path) -> None:
    """Step, pipeline time and bubble of `report` are those of `export` and `overview` and, of the whole run, those of
    the job; so are the levels and causes on both pages. A run compared with itself differs in nothing."""
    given = Input.of(row)
    given.write(tmp_path / "in")
    options = [*given.options, *words(row, REPORT, given.host)]
    wanted = left(given.truth, row)
    documents, facts = {}, {}
    for name, *more in (("report",), ("overview",), ("export", "--format", "csv")):
        done = command(name, "in", "--json", *more, *options, cwd=tmp_path)
        one_sentence(done)
        assert (done.returncode == 0) == (len(wanted) > 0), done.stderr
        if done.returncode:
            continue
        documents[name] = result = document(done.stdout)
        said = (each["facts"] for each in result.get("verdict", []) if each["code"] == "step")
        facts[name] = result if name == "export" else next(said, {})
    if not documents:
        return
    report, exported = documents["report"], documents["export"]
    for name, error in (("bubble", 1e-9), ("step_ns", 1), ("pipeline_ns", 1)):
        for other in ("overview", "export"):
            assert facts[other].get(name) == pytest.approx(facts["report"].get(name), abs=error), (other, name)
    for name in ("levels", "causes"):
        assert documents["overview"][name] == report[name], name
    if len(wanted) == len(given.truth):
        assert exported["bubble"] == pytest.approx(given.run.bubble(given.job), abs=2e-3)
        assert exported["step_ns"] == pytest.approx(given.run.step_ns, abs=2 * CLOCKS_NS)
        shutil.copytree(tmp_path / "in", tmp_path / "copy")
        same = document(command("compare", "in", "copy", "--json", *given.options, cwd=tmp_path).stdout)
        assert all(row["difference"] in (0, None) for row in (*same["whole"], *same["levels"], *same["blocks"]))
        assert not same["causes"]


def test_a_picture_has_the_blocks_of_the_job(row: Row, tmp_path: Path) -> None:
    """Each block of the selection is drawn once, in the row of its stage or rank, as long as it was, to a pixel."""
    given = Input.of(row)
    given.write(tmp_path / "in")
    options = [*given.options, *words(row, PICTURE, given.host)]
    done = command("export", "in", "--format", "svg,csv", "--out", "out", *options, cwd=tmp_path)
    one_sentence(done)
    wanted = left(given.truth, row)
    assert (done.returncode == 0) == (len(wanted) > 0), done.stderr
    if done.returncode == 0:
        in_picture(tmp_path / "out" / "pipeline_profile.svg", cut(wanted, given.truth, row))


def test_what_does_not_matter_changes_nothing(row: Row, tmp_path: Path) -> None:
    """A second run, of a folder with another name and a file beside the profiles, in one process or in two, gives the
    table of the first."""
    given = Input.of(row)
    given.write(tmp_path / "in")
    shutil.copytree(tmp_path / "in", tmp_path / "a b (ä)")
    (tmp_path / "a b (ä)" / "notes.txt").write_text("not a profile\n", encoding="utf-8")
    tables = []
    for folder, jobs in (("in", "1"), ("a b (ä)", row["--jobs"])):
        out = f"of {folder}"
        done = command("export", folder, "--jobs", jobs, "--format", "csv", "--out", out, *given.options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        tables.append((tmp_path / out / "pipeline_profile.csv").read_bytes())
    assert tables[0] == tables[1]


def test_every_option_is_drawn_or_given_elsewhere() -> None:
    """A new option has to be put into one of the tables."""
    export = {name for option in made("export").params for name in option.opts if name.startswith("--")}
    assert export <= EXPORT.keys() | PICTURE.keys() | ELSEWHERE
    assert ELSEWHERE.isdisjoint(EXPORT)
