"""A baseline: the figures of a run in a small JSON file, with which a later run is compared.

    {"format": "trace_export baseline 2", "name": …, "traits": {…}, "gains": …, "whole": [{…}], "levels": […],
     "causes": […], "blocks": […], "steps": […], "stages": […], "predictions": […]}

The tables are those of `RunFigures`, a row each; the file is meant to be kept beside the code that it measures. The
JSON document of a report holds the same figures and can take its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.analysis.explanation import CAUSES, LEVELS
from trace_export.analysis.run_figures import BLOCKS, PREDICTIONS, STAGES, STEPS, WHOLE, RunFigures
from trace_export.errors import SourceError
from trace_export.files import open_file, read_file

FORMAT = "trace_export baseline 2"
MOST_BYTES = 64 << 20
TABLES = {
    "whole": WHOLE, "levels": LEVELS, "causes": CAUSES, "blocks": BLOCKS, "steps": STEPS, "stages": STAGES,
    "predictions": PREDICTIONS,
}  # fmt: skip
TRAITS = ("schedule", "stages", "ranks", "micro-batches", "chunks", "backwards", "times")
_REMEDY = "write it again: trace-export compare RUN --baseline FILE --save"


@dataclass(frozen=True)
class Baseline:
    """The figures of an earlier run, and what it was called."""

    name: str
    figures: RunFigures


def write(baseline: Baseline, path: Path) -> None:
    """Writes the file."""
    figures = baseline.figures
    tables = {name: getattr(figures, name).to_dicts() for name in TABLES}
    document = {"format": FORMAT, "name": baseline.name, "traits": figures.traits, "gains": figures.gains}
    path.write_bytes(orjson.dumps(document | tables, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def is_baseline(path: Path) -> bool:
    """Whether a regular file begins like a baseline or the document of a report, whatever its name."""
    try:
        with open_file(path) as file:
            begins = file.read(64)
            return b'"trace_export baseline ' in begins or b'"document":"report"' in begins.replace(b" ", b"")
    except OSError:
        return False


def read(path: Path) -> Baseline:
    """The baseline in a file. Raises SourceError if the file does not hold one."""
    try:
        data = orjson.loads(read_file(path, MOST_BYTES))
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}", _REMEDY) from error
    except orjson.JSONDecodeError as error:
        raise SourceError(path, f"is not JSON: {error}", _REMEDY) from error
    data = _of_report(path, data) if isinstance(data, dict) and data.get("document") == "report" else data
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise SourceError(path, f"is not a baseline of this version ({FORMAT})", _REMEDY)
    traits = data.get("traits")
    if not isinstance(traits, dict) or set(traits) != set(TRAITS):
        raise SourceError(path, f"its traits are not {', '.join(TRAITS)}", _REMEDY)
    gains = data.get("gains")
    if not isinstance(gains, bool):
        raise SourceError(path, '"gains" is neither true nor false', _REMEDY)
    data.setdefault("predictions", [])  # kept since later
    tables = {name: _table(path, name, data.get(name)) for name in TABLES}
    return Baseline(str(data.get("name", path.stem)), RunFigures(traits=traits, gains=gains, **tables))


def _of_report(path: Path, report: dict[str, Any]) -> dict[str, Any]:
    """A report's document as a baseline: the steps that count in its means, without the metric S."""
    try:
        counting = [step for step in report["steps"] if step["counts"]] or report["steps"]
        counted = {(step["run"], step["step"]) for step in counting}
        stages = [row for row in report["stages"] if (row["run"], row["step"]) in counted]
        parts = {
            "causes": report["causes"], "levels": report["levels"], "stages": stages,
            "steps": [step | {"slowdown": None} for step in counting], "predictions": report["what_if"][1:],
        }  # fmt: skip
        tables = {name: [{key: row[key] for key in TABLES[name]} for row in rows] for name, rows in parts.items()}
        return {"format": FORMAT, "name": path.stem, "gains": report["trust"]["gains"], **report["figures"], **tables}
    except (KeyError, TypeError) as error:
        raise SourceError(path, f"is not a report of this version: it lacks {error}", _REMEDY) from error


def _table(path: Path, name: str, rows: Any) -> pl.DataFrame:
    schema = TABLES[name]
    if not isinstance(rows, list) or not all(isinstance(row, dict) and set(row) == set(schema) for row in rows):
        raise SourceError(path, f'the rows of "{name}" do not have {", ".join(schema)}', _REMEDY)
    try:
        return pl.DataFrame(rows, schema=schema, strict=True)
    except (pl.exceptions.PolarsError, TypeError, OverflowError) as error:
        raise SourceError(path, f'a value of "{name}" is not of its type', _REMEDY) from error
