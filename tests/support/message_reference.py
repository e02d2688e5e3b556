"""The page of all notes and errors, made from the code.

`python -m tests.support.message_reference` writes it.
"""

import ast
from collections.abc import Iterator

from tests.conftest import ROOT
from tests.support.architecture import FILES, nodes_of
from trace_export import errors
from trace_export.messages import ERRORS, NOTES

PACKAGE = ROOT / "trace_export"
PAGE = PACKAGE / "docs" / "messages.md"
HEAD = """# Notes, warnings and errors

Made from the code by `python -m tests.support.message_reference`.

A **detail** says what holds for many a sound run; the terminal shows it with `--verbose`. A **note** says what was
inferred, repaired or left out. A **warning** is a note about data that were refused or a chart
that may mislead; with `--strict` it makes the exit code 3. Each has a code, which stays the same when its sentence is
improved: the terminal shows it in brackets, `--json` has it as `code`. A line such as `2 × …` counts the cases.
"""


def notes() -> Iterator[tuple[str, ast.Call]]:
    """(file and line, call) of each `Note(...)` in the package."""
    for path in FILES:
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note":
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def code(note: ast.Call) -> str:
    """Raises ValueError when the first argument is no literal."""
    value = ast.literal_eval(note.args[0])
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no code")
    return value


def levels(note: ast.Call) -> set[str]:
    """The levels that a note can have: its second argument is a literal, or a choice between two."""
    level = note.args[1]
    branches = [level.body, level.orelse] if isinstance(level, ast.IfExp) else [level]
    return {str(ast.literal_eval(branch)) for branch in branches}


def error_classes() -> list[type[errors.TraceExportError]]:
    """The classes of the error tree below its root, in the order of the file."""
    return [
        c for name, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.TraceExportError)
        and c is not errors.TraceExportError and not name.startswith("_")
    ]  # fmt: skip


def page() -> str:
    """The whole page in Markdown."""
    words: dict[str, set[str]] = {}
    for _, note in notes():
        words.setdefault(code(note), set()).update(levels(note))
    rows = [
        f"| `{name}` | {' or '.join(sorted(words[name]))} | {NOTES[name].meaning} | {NOTES[name].action} |"
        for name in sorted(words)
    ]
    table = ["## Notes and warnings", "", "| code | level | meaning | what to do |", "|---|---|---|---|", *rows]
    failed = ["## Errors", "", "An error is one sentence: what is wrong, with the file or option, and what to do.", "",
              "| class | exit code | meaning | what to do |", "|---|---|---|---|"]  # fmt: skip
    failed += [f"| `{c.__name__}` | {c.exit_code} | {_first(c)} | {ERRORS[c.__name__]} |" for c in error_classes()]
    return "\n".join([HEAD, *table, "", *failed, ""])


def _first(result: type) -> str:
    """The docstring on one line."""
    return " ".join((result.__doc__ or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
