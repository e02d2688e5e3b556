"""The page of all commands and options, made from the command line itself.

`python -m tests.support.command_reference` writes it.
"""

from __future__ import annotations

from typing import Any

import typer

from tests.conftest import ROOT
from trace_export.cli.app import app

PAGE = ROOT / "trace_export" / "docs" / "commands.md"
HEAD = """# Commands and options

Made from the command line by `python -m tests.support.command_reference`. Options may be spelled with `_` or `-`.
`trace-export DIR` is short for `trace-export export DIR`.

Exit codes: 0 done; 1 nothing could be exported; 2 wrong usage; 3 done, but some sources failed, or `--strict` found a
warning; 4 a run is worse than `compare --fail-above` allows; 130 interrupted (129 and 143: ended by SIGHUP and
SIGTERM).
"""


def page() -> str:
    """The whole page in Markdown."""
    group: Any = typer.main.get_command(app)
    parts = [HEAD]
    same: dict[tuple[str, ...], str] = {}
    for name, command in group.commands.items():
        rows = tuple(_row(parameter) for parameter in command.params if parameter.name != "help")
        text = " ".join((command.help or "").split())
        known = same.setdefault(rows, name)
        table = ["", "| option | default | meaning |", "|---|---|---|", *rows] if rows else []
        parts.append(
            "\n".join([f"## {name}", "", text, *(table if known == name else ["", f"Options as for `{known}`."]), ""])
        )
    return "\n".join(parts)


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{o}`" for o in dict.fromkeys([*parameter.opts, *parameter.secondary_opts]))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    default = "" if parameter.default in (None, False, ()) or callable(parameter.default) else f"`{parameter.default}`"
    meaning = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| {names} | {default} | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
