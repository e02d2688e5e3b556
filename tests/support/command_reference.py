"""The page of all commands and options, made from the command line itself.

`python -m tests.support.command_reference` writes it.
"""

from tests.conftest import ROOT
from trace_export.cli.app import aliases
from trace_export.cli.commands import ROWS, Row, command
from trace_export.options import PANELS, Option, flags, options_of

PAGE = ROOT / "trace_export" / "docs" / "commands.md"
HEAD = """# Commands and options

Made from the options by `python -m tests.support.command_reference`. Options may be spelled with `_` or `-`.
`trace-export DIR` is short for `trace-export export DIR`. `--help` shows the options in bold, `--help-all` all.

Exit codes: 0 done; 1 nothing could be exported; 2 wrong usage; 3 done, but some sources failed, or `--strict` found a
warning; 4 a run is worse than `compare --fail-above` allows; 130 interrupted (129 and 143: ended by SIGHUP and
SIGTERM).
"""


def page() -> str:
    """The whole page in Markdown."""
    return "\n".join([HEAD, *(_section(name, row) for name, row in ROWS.items()), _before()])


def _section(name: str, row: Row) -> str:
    text = " ".join((command(name).help or "").split())
    options = {key: option for key, option in options_of(row.kind).items() if option.panel and not option.instead}
    rows = [_row(key, option) for panel in PANELS for key, option in options.items() if option.panel == panel]
    return "\n".join([f"## {name}", "", text, "", "| option | default | meaning |", "|---|---|---|", *rows, ""])


def _row(key: str, option: Option) -> str:
    spellings = flags(key, option)
    value = "" if option.is_flag or not spellings else f" {option.metavar}"
    names = ", ".join(f"`{flag}{value}`" for flag in spellings) or f"`{option.metavar}`"
    default = f"`{option.default}`" if isinstance(option.default, str | int) and not option.is_flag else ""
    bold = "**" if option.usual else ""
    return (
        f"| {bold}{names.replace('|', chr(92) + '|')}{bold} | {default} | {option.help.replace('|', chr(92) + '|')} |"
    )


def _before() -> str:
    """The spellings of version 0.1."""
    commands = {name: " ".join(now) for name, now in aliases().items()}
    options = {
        flag: option.instead
        for row in ROWS.values()
        for key, option in options_of(row.kind).items()
        for flag in flags(key, option)
        if option.instead
    }
    rows = [f"| `{old}` | `{now}` |" for old, now in (commands | options).items()]
    head = "They work until version 0.3, are in no help, and say what they are now."
    return "\n".join(["## Spellings of version 0.1", "", head, "", "| was | is |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
