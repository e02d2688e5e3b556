"""The documents of --json and their schemas in docs/schemas."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import polars as pl
import pytest
from msgspec import Struct

from tests.conftest import AscendRun, Cli
from tests.support import schemas
from tests.support.rows import slow
from trace_export import documents
from trace_export.documents import Document


def test_the_files_are_those_of_the_types() -> None:
    assert {path.name for path in schemas.FOLDER.iterdir()} == {f"{name}.schema.json" for name in schemas.DOCUMENTS}
    for name in schemas.DOCUMENTS:
        text = (schemas.FOLDER / f"{name}.schema.json").read_text("utf-8")
        assert text == schemas.text(name), "write it anew: python -m tests.support.schemas"


class Place(Struct):
    stage: int
    ms: float | None


class Answer(Document, tag="answer"):
    slow: list[Place]
    first: Place | None
    text: str


def test_a_document_is_filled_from_attributes_tables_and_what_is_given() -> None:
    table = pl.DataFrame({"ms": [1.5, None], "stage": [3, 4], "more": ["", ""]})
    nan = SimpleNamespace(stage=3, ms=float("nan"), more="")
    source = SimpleNamespace(slow=table, first=nan, text="its own", version=1)
    assert json.loads(documents.encode(documents.from_attributes(Answer, source, text="given"))) == {
        "document": "answer",
        "version": 2,
        "slow": [{"stage": 3, "ms": 1.5}, {"stage": 4, "ms": None}],
        "first": {"stage": 3, "ms": None},
        "text": "given",
    }
    assert documents.from_attributes(Answer, source, slow=(nan,), first=None) == Answer(2, [ANY], None, "its own")
    assert documents.rows(pl.DataFrame(), Place) == []


RUNS = (
    "paddle/two_machines",
    "nsys/two_hosts",
    "rocpd/two_hosts",
    "kineto/two_hosts",
    "ascend",
    "unmarked",
    "recorder/two_hosts",
)


CASES = [
    *(("inspect", sample) for sample in RUNS[:1] + RUNS[5:]),
    *slow(("inspect", sample) for sample in RUNS[1:5]),
    *(("report", sample) for sample in ("rocpd/two_hosts", "ascend", "unmarked")),
    *(("export", sample) for sample in ("ascend", "unmarked")),
    ("overview", "ascend"),
]
"""Samples that together have every field of a document, empty and not: what is printed depends on the format."""


@pytest.mark.parametrize(("command", "sample"), CASES)
def test_what_a_command_prints_is_what_the_schema_says(
    command: str, sample: str, samples: Path, run_cli: Cli, tmp_path: Path
) -> None:
    out = () if command in ("inspect", "report") else ("--out", tmp_path)
    result = run_cli(command, samples / sample, "--json", *out)
    assert schemas.errors(json.loads(result.stdout)) == [], result.stderr


@pytest.mark.parametrize(
    "name", ["dualpipev", *slow(["dualpipev not fused", "batched transfers", "clipped", "level none"])]
)
def test_a_report_of_transfers_both_ways_is_what_the_schema_says(
    name: str, ascend_run: AscendRun, run_cli: Cli
) -> None:
    """Where two ranks send to each other at once, a transfer has no direction."""
    result = run_cli("report", ascend_run(name)[0], "--json")
    assert schemas.errors(json.loads(result.stdout)) == [], result.stderr


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("compare", ("{}/paddle/single", "{}/nsys/two_hosts", "--json")),
        ("inspect", ("{}/generators", "--json")),
        ("simulate", ("--schedule", "gpipe,zb-v", "--stages", "4", "--microbatches", "8", "--json")),
    ],
)
def test_other_documents(command: str, arguments: Sequence[str], samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    """Those of the golden runs are checked there."""
    result = run_cli(command, *(word.format(samples) for word in arguments), cwd=tmp_path)
    document = json.loads(result.stdout)
    assert document["document"] == command
    assert schemas.errors(document) == []


@pytest.fixture(scope="module")
def printed(samples: Path, run_cli: Cli) -> dict[str, Any]:
    """A report."""
    document: dict[str, Any] = json.loads(run_cli("report", samples / "paddle" / "single", "--json").stdout)
    return document


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 1},
        {"document": "export"},
        {"steps": [{"step": 1}]},
        {"notes": [{"code": "x", "level": "loud", "text": "", "where": "", "count": 1}]},
        {"speed": 1},
    ],
)
def test_a_schema_refuses_what_is_none(damage: dict[str, Any], printed: dict[str, Any]) -> None:
    assert schemas.checker("report").is_valid(printed)
    assert not schemas.checker("report").is_valid(printed | damage)
    assert not schemas.checker("report").is_valid({key: value for key, value in printed.items() if key != "version"})
