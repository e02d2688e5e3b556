"""The commands by their names. Each is loaded and made when it is first asked for: a run needs one, `--help` all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer

from trace_export.sources import formats

HOMES = {
    "inspect": "inspect.inspect",
    "report": "report.report",
    "overview": "overview.overview",
    "watch": "watch.watch",
    "simulate": "simulate.simulate",
    "compare": "compare.compare",
    "open": "open.open_trace",
    "howto": "howto.howto",
    "docs": "docs.docs",
    "mcp": "mcp.mcp",
    "run": "run.run",
}
"""Command → file and function. `export`, and the commands of the formats, are in `export`."""
CLASSES = {"watch": "WatchCommand"}
"""Command → the class of it in its file, where that is no usual one."""
SETTINGS = {"run": {"allow_interspersed_args": False}}


class Commands(Mapping[str, Any]):
    """The name of each command, in the order of the help, and the command as Typer makes it."""

    def __init__(self) -> None:
        self._names = ("export", *formats.commands(), *HOMES)
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = _command(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _command(name: str) -> Any:
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    if name in HOMES:
        file, function = HOMES[name].split(".")
        module = import_module(f"{__package__}.{file}")
        made = getattr(module, CLASSES[name]) if name in CLASSES else None
        app.command(name, cls=made, context_settings=SETTINGS.get(name))(getattr(module, function))
    else:
        from trace_export.cli import export

        app.command(name, help=export.purpose(name))(export.command)
    return typer.main.get_command(app)
