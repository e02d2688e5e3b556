"""The reference in docs/library.md: every public function, method and table, made from the code.

`python -m tests.support.library_reference` writes it into the page.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, get_args, is_typeddict

import polars as pl

import trace_export
from tests.conftest import ROOT
from trace_export import model
from trace_export.analysis import explanation, slowdown, transfer_split
from trace_export.steps import path
from trace_export.writers.formats import OUTPUT_FORMATS

PAGE = ROOT / "trace_export" / "docs" / "library.md"
FUNCTIONS = (
    "load", "overview", "compare", "simulate", "draw_schedules", "inspect", "watch", "fit_clocks",
)  # fmt: skip
RESULTS = (
    "Overviewed", "Overview", "Compared", "Look", "StepFigures",
    "Simulation", "Summary", "ModelSummary", "Report", "Theory",
    "ClosedForm", "Explanation", "Trust", "Slowdown", "CriticalPath", "Comparison", "Gate", "RunFigures", "Baseline",
    "Sentence", "ReportTable", "Place",
    "Inspection", "Profile", "Interpretation", "Recognition", "Plan", "Declared", "Note", "KernelFile", "Costs",
    "FigureStyle", "Plot", "Window", "ClockFit",
)  # fmt: skip
"""Classes that are only read, or made of plain values."""
TABLES = {
    "spans": "SPANS", "ranks": "RANKS", "hosts": "HOSTS", "messages": "MESSAGES", "p2p": "P2P", "members": "MEMBERS",
    "collectives": "COLLECTIVES", "counters": "COUNTERS", "clocks": "CLOCKS", "steps": "STEPS",
    "recordings": "RECORDINGS", "runs": "RUNS",
    "the passes of an interpretation": "PASSES", "the edges of an interpretation": "EDGES",
    "the files of device tasks": "KERNELS",
}  # fmt: skip
"""What the user meets → its schema in model.py."""
FRAMES: dict[str, tuple[ModuleType, str]] = {
    "Run.messages": (transfer_split, "SPLIT"), "Explanation.causes": (explanation, "CAUSES"),
    "Explanation.levels": (explanation, "LEVELS"), "CriticalPath.parts": (path, "PARTS"),
    "CriticalPath.steps": (path, "STEPS"), "CriticalPath.slack": (path, "SLACK"),
    "Slowdown.parts": (slowdown, "PARTS"),
}  # fmt: skip
"""Frames of results → the module and the name of their schemas."""

_REFERENCE = re.compile(r"(?<=<!-- reference -->\n).*?(?=<!-- end of reference -->)", re.S)


def reference() -> str:
    """All of it in Markdown."""
    parts = ["## Functions", *(_callable(name, getattr(trace_export, name)) for name in FUNCTIONS)]
    parts += ["## `Run`", _text(trace_export.Run.__doc__)]
    parts += [_callable(f"Run.{name}", method) for name, method in _methods(trace_export.Run)]
    parts += ["## Words", "\n".join(_words())]
    parts += ["## Keywords", "\n".join(_keywords())]
    parts += ["## Tables", *(_table(shown, model, schema) for shown, schema in TABLES.items())]
    parts += [_table(shown, *where) for shown, where in FRAMES.items()]
    parts += ["## Frames of a report and of a comparison", _frames()]
    parts += ["## Other classes", *map(_class, RESULTS)]
    return "\n\n".join(parts) + "\n"


def _callable(name: str, function: Callable[..., object]) -> str:
    """The signature, a line for each parameter, and the documentation."""
    signature = inspect.signature(function)
    lines, keyword_only = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("    *,")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        lines.append(f"    {parameter.name}: {parameter.annotation}{default},")
    inside = "\n".join(["(", *lines, ")"]) if lines else "()"
    return f"### `{name}`\n\n```py\n{name}{inside} -> {signature.return_annotation}\n```\n\n{_text(function.__doc__)}"


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., object]]]:
    for name, item in vars(kind).items():
        if inspect.isfunction(item) and not name.startswith("_"):
            yield name, item


def _words() -> Iterator[str]:
    """What the parameters of a type that is a list of words accept."""
    for name in trace_export.__all__:
        words = get_args(getattr(trace_export, name))
        if words and all(isinstance(word, str) for word in words):
            yield f"- `{name}`: {', '.join(words)}"
    yield f"- `Format`: {', '.join(row.name for row in OUTPUT_FORMATS)}"
    yield "- `Inputs`: a folder, a file, or a list of files"
    yield "- `NumberSet`: " + 'all, "0,2-4", 3, range(2, 5), [0, 2]; None for all'
    yield "- `Progress`: a function of what is being done, how much of it is done, and out of how much"


def _keywords() -> Iterator[str]:
    """The classes of keywords, for programs that pass them on."""
    yield "The keywords of each function are a TypedDict, for programs that pass them on:"
    yield ""
    for name in trace_export.__all__:
        if is_typeddict(kind := getattr(trace_export, name)):
            yield f"- `{name}`: {_text(kind.__doc__)}"
    before = "`export`, `report`, `save_baseline`, and the results `Exported`, `Reported`"
    yield ""
    yield f"Functions of version 0.1 ({before}) work until version 0.3: [what they are now](changes-0.2.md)."


def _table(shown: str, module: ModuleType, schema: str) -> str:
    columns = ", ".join(f"`{name}` {dtype}" for name, dtype in getattr(module, schema).items())
    return f"### `{shown}`\n\n{columns}.\n\n{_text(_described(module)[schema])}"


def _described(module: ModuleType) -> dict[str, str]:
    """The texts that follow assignments in a module."""
    body = ast.parse(inspect.getsource(module)).body
    result = {}
    for item, following in pairwise(body):
        if isinstance(item, ast.AnnAssign) and isinstance(following, ast.Expr):
            result[ast.unparse(item.target)] = ast.literal_eval(following.value)
    return result


def _frames() -> str:
    """The columns of each frame, as those of a simulated run."""
    run = trace_export.simulate("1f1b", 4, 8)
    made = {"Report": run.report(), "Theory": run.report().theory, "Comparison": run.compare(run)}
    rows = []
    for kind, result in made.items():
        for field in fields(result):
            frame = getattr(result, field.name)
            if isinstance(frame, pl.DataFrame):
                columns = ", ".join(f"`{name}` {dtype}" for name, dtype in frame.schema.items())
                rows.append(f"| `{kind}.{field.name}` | {columns} |")
    return "\n".join(["| frame | columns |", "|---|---|", *rows])


def _class(name: str) -> str:
    kind: Any = getattr(trace_export, name)
    lines = [f"### `{name}`", _text(kind.__doc__)]
    if is_dataclass(kind):
        public = [field for field in fields(kind) if not field.name.startswith("_")]
        lines.append("Fields: " + ", ".join(f"`{field.name}: {field.type}`" for field in public) + ".")
    if others := [f"`{method}()`: {_text(item.__doc__)}" for method, item in _methods(kind)]:
        lines.append("\n".join(f"- {other}" for other in others))
    return "\n\n".join(lines)


def _text(documentation: str | None) -> str:
    """The paragraphs of a docstring, each on one line."""
    paragraphs = inspect.cleandoc(documentation or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def page() -> str:
    """The page with the reference as it should be."""
    return _REFERENCE.sub(lambda _: reference(), PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
