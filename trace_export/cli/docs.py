"""`trace-export docs [PAGE]`: the pages of the documentation, which the installed package contains."""

from __future__ import annotations

import sys
from importlib.resources import files
from typing import TYPE_CHECKING, Unpack

from trace_export.errors import UsageError
from trace_export.options import Docs
from trace_export.sources.formats import guides

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

INSTRUMENT = "instrument"
"""A guide for training scripts, whatever the profiler."""
PAGES_NAMED = 6
"""Pages that contain a word which is the name of none."""


def docs(**given: Unpack[Docs]) -> None:
    """Print a guide (how to collect a profile that can be drawn, how to mark the passes of a script) or a page of the
    documentation: definitions, formats, limits, the library."""
    found = pages()
    if given["page"] is None:
        for name, page in found.items():
            print(f"trace-export docs {name:20} {page.read_text('utf-8').partition(chr(10))[0].removeprefix('# ')}")
        return
    name = given["page"].removesuffix(".md").rpartition("/")[2]
    if name not in found:
        speak = [page for page, text in found.items() if name.lower() in text.read_text("utf-8").lower()]
        pages_of = f"these speak of it: {', '.join(speak[:PAGES_NAMED])}" if speak else "trace-export docs lists all"
        raise UsageError(f'there is no page "{given["page"]}"', pages_of)
    show(found[name].read_text("utf-8"))


def pages() -> dict[str, Traversable]:
    """The guides, one for each profiler and one for scripts, and the pages, by their names."""
    folder = files("trace_export").joinpath("docs")
    known = {name: folder.joinpath("collect", f"{name}.md") for name in (*guides(), INSTRUMENT)}
    return known | {
        entry.name.removesuffix(".md"): entry
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".md")
    }


def show(markdown: str) -> None:
    """A page as the terminal shows it best; as it is where nobody looks at a terminal."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(markdown))
    else:
        print(markdown, end="")
