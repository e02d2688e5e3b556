"""The JSON Schemas of the documents that commands print with --json, made from the types of the code.

`python -m tests.support.schemas` writes them.
"""

import json
from functools import cache
from typing import Any

import jsonschema
import msgspec
import orjson

from tests.conftest import ROOT
from trace_export.analysis.compare_document import CompareDocument
from trace_export.analysis.report_document import ReportDocument
from trace_export.analysis.run_document import ExportDocument, SimulateDocument
from trace_export.inspection.document import InspectDocument
from trace_export.live.step_figures import StepDocument
from trace_export.scale.overview_document import OverviewDocument

FOLDER = ROOT / "trace_export" / "docs" / "schemas"
DOCUMENTS: dict[str, Any] = {
    "compare": CompareDocument,
    "export": ExportDocument,
    "inspect": InspectDocument,
    "overview": OverviewDocument,
    "report": ReportDocument,
    "simulate": SimulateDocument,
    "watch": StepDocument,
}


def schema(name: str) -> dict[str, Any]:
    """The schema of the document of a command."""
    made = msgspec.json.schema(DOCUMENTS[name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"trace-export {name}",
        **_on_one_line(made),
    }


@cache
def checker(name: str) -> jsonschema.Draft202012Validator:
    """Of the file of a command; it allows no field besides those that the schema names."""
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(_strict(schema))


def errors(document: dict[str, Any]) -> list[object]:
    """What in a document is not as its schema says."""
    return list(checker(document["document"]).iter_errors(document))


def _strict(part: Any) -> Any:
    if isinstance(part, dict):
        closed = {"additionalProperties": False} if "properties" in part else {}
        return {key: _strict(value) for key, value in part.items()} | closed
    return [_strict(each) for each in part] if isinstance(part, list) else part


def _on_one_line(part: Any) -> Any:
    """Descriptions without the line breaks of the code."""
    if isinstance(part, dict):
        return {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else _on_one_line(value)
            for key, value in part.items()
        }
    return [_on_one_line(each) for each in part] if isinstance(part, list) else part


def text(name: str) -> str:
    """The file of a schema."""
    return orjson.dumps(schema(name), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in DOCUMENTS:
        (FOLDER / f"{each}.schema.json").write_text(text(each), encoding="utf-8")
