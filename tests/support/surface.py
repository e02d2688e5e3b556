"""What scripts of users rely on: options, note codes, keys of the JSON documents, exit codes.

`tests/golden/surface.txt` has one a line. Something new may come without being there; what goes stays there, followed
by `->` and what took its place. `python -m tests.support.surface` adds what is new and prints how the file differs.
"""

import difflib
import re
from collections.abc import Iterator
from typing import Any

from tests.conftest import ROOT
from tests.support.message_reference import code, error_classes, levels, notes
from tests.support.schemas import DOCUMENTS, schema
from trace_export.cli.commands import ROWS, command

FILE = ROOT / "tests" / "golden" / "surface.txt"
GONE = " -> "


def today() -> list[str]:
    """Each thing that is there, as a line."""
    return sorted({*_options(), *_notes(), *_exit_codes(), *_keys()})


def frozen() -> dict[str, str]:
    """The lines of the file; for what went, what took its place, else ''."""
    lines = FILE.read_text("utf-8").splitlines() if FILE.exists() else []
    return {thing: instead for thing, _, instead in (line.partition(GONE) for line in lines)}


def _options() -> Iterator[str]:
    given = {name: _spellings(command(name)) for name in ROWS}
    for name, spellings in given.items():
        if name != "export" and spellings == given["export"]:
            yield f"command {name}, with the options of export"
        else:
            yield f"command {name}"
            yield from (f"option {name} {spelling}" for spelling in spellings)


def _spellings(command: Any) -> list[str]:
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    return [spelling for option in options for spelling in option.opts + option.secondary_opts]


def _notes() -> Iterator[str]:
    for _, note in notes():
        yield from (f"note {code(note)} {level}" for level in levels(note))


def _exit_codes() -> Iterator[str]:
    page = (ROOT / "trace_export" / "docs" / "commands.md").read_text("utf-8")
    stated = page.partition("Exit codes: ")[2].partition("\n\n")[0]
    for each in re.findall(r"\b\d{1,3}\b(?= and \d| [a-z]|:)", stated):
        yield f"exit code {each}"
    for error in error_classes():
        yield f"error {error.__name__} {error.exit_code}"


def _keys() -> Iterator[str]:
    for name in DOCUMENTS:
        made = schema(name)
        for key in _properties(made, made.get("$defs", {})):
            yield f"json {name} {key}"


def _properties(part: Any, definitions: dict[str, Any], path: str = "") -> Iterator[str]:
    """The paths of all keys below a part of a schema: `steps[].pipeline_ns`."""
    if "$ref" in part:
        part = definitions[part["$ref"].rpartition("/")[2]]
    for key, value in part.get("properties", {}).items():
        below = f"{path}.{key}" if path else key
        yield below
        yield from _properties(value, definitions, below)
    for each in part.get("anyOf", []):
        yield from _properties(each, definitions, path)
    if isinstance(part.get("items"), dict):
        yield from _properties(part["items"], definitions, f"{path}[]")
    if isinstance(part.get("additionalProperties"), dict):
        yield from _properties(part["additionalProperties"], definitions, f"{path}.*")


if __name__ == "__main__":
    known = frozen()
    lines = sorted(
        [thing + (GONE + instead if instead else "") for thing, instead in known.items()]
        + [thing for thing in today() if thing not in known]
    )
    before = FILE.read_text("utf-8").splitlines() if FILE.exists() else []
    print(*[line for line in difflib.ndiff(before, lines) if line[0] in "+-"], sep="\n")
    FILE.write_text("\n".join([*lines, ""]), encoding="utf-8")
