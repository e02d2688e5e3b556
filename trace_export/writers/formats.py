"""The output formats: one row each, with its name, its extension, what it shows and the function that writes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

Kind = Literal["trace", "table", "picture"]


@dataclass(frozen=True)
class OutputFormat:
    """A format: its `name` for the user, the `extension` of its files, and the `kind` of its content.

    A trace holds the whole chart, a picture the part of it that fits a page, a table the blocks of all ranks. `writer`
    is MODULE:FUNCTION below this package, imported when it is needed. Of a trace it takes (chart, path, gzip=) and
    returns a context of what takes the parts of the chart, see `Chart.put`. The others write: a table takes (profile,
    path, beside=), a picture (chart, path, format=, steps=, bubbles=, style=). `check` is a function of the same form
    that takes the name of the format and raises UsageError where that needs a package that is not installed.
    """

    name: str
    extension: str
    kind: Kind
    writer: str
    check: str = ""

    def load(self) -> Callable[..., Any]:
        """The function `writer`."""
        return _function(self.writer)

    def ensure_installed(self) -> None:
        """Raises UsageError where a package that it needs is not installed."""
        if self.check:
            _function(self.check)(self.name)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    writer: Callable[..., Any] = getattr(import_module(f"trace_export.writers.{module}"), function)
    return writer


OUTPUT_FORMATS = (
    OutputFormat("perfetto", "pftrace", "trace", "traces.perfetto:writing"),
    OutputFormat("chrome", "json", "trace", "traces.chrome:writing"),
    OutputFormat("svg", "svg", "picture", "pictures.picture:write"),
    OutputFormat("png", "png", "picture", "pictures.picture:write", "pictures.picture:renderer"),
    OutputFormat("pdf", "pdf", "picture", "pictures.picture:write", "pictures.picture:renderer"),
    OutputFormat("html", "html", "picture", "pictures.picture:write"),
    OutputFormat("parquet", "parquet", "table", "tables:write_parquet"),
    OutputFormat("csv", "csv", "table", "tables:write_csv"),
)
"""To add a format, add its row, and the file of its writer, whose output begins as a file of ours does (`mark`)."""
BY_NAME: dict[str, OutputFormat] = {output_format.name: output_format for output_format in OUTPUT_FORMATS}
