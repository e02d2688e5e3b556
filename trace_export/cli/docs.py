"""`trace-export docs [PAGE]`: the pages of the documentation, which the installed package contains."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib.resources import files
from typing import TYPE_CHECKING, Unpack

from trace_export.errors import UsageError
from trace_export.options import Docs
from trace_export.sources.formats import commands

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

INSTRUMENT = "instrument"
"""A guide for training scripts, whatever the profiler."""
PAGES_NAMED = 6
"""At most this many pages are named that contain a word."""
SUCCESSORS = {
    "attribution": "labels",
    "bubbles": "slowdown",
    "clocks-math": "clocks",
    "gate": "compare",
    "performance": "scale",
}
"""The page that has taken over a page of version 0.1."""
ALIKE = 0.6
"""A page is suggested for a name that is as similar as this (`difflib`)."""


def docs(**given: Unpack[Docs]) -> None:
    """Print a guide (how to collect a profile that can be drawn, how to mark the passes of a script) or a page of the
    documentation: definitions, formats, limits, the library."""
    by_name = pages()
    if given["page"] is None:
        for name, page in by_name.items():
            print(f"trace-export docs {name:20} {page.read_text('utf-8').partition(chr(10))[0].removeprefix('# ')}")
        return
    name = given["page"].removesuffix(".md").rpartition("/")[2].lower()
    page = by_name.get(SUCCESSORS.get(name, name))
    if page is None:
        raise UsageError(f'there is no page "{given["page"]}"', _instead(name, by_name))
    show(page.read_text("utf-8"))


def _instead(name: str, by_name: Mapping[str, Traversable]) -> str:
    """What to ask for instead of a page that does not exist."""
    if alike := get_close_matches(name, by_name, n=1, cutoff=ALIKE):
        return f"did you mean {alike[0]}?"
    mentioning = [other for other, page in by_name.items() if name in page.read_text("utf-8").lower()]
    return f"these mention it: {', '.join(mentioning[:PAGES_NAMED])}" if mentioning else "trace-export docs lists all"


def pages() -> dict[str, Traversable]:
    """The guides, one for each profiler and one for scripts, and the pages, by their names."""
    folder = files("trace_export").joinpath("docs")
    guides = {name: folder.joinpath("collect", f"{name}.md") for name in (*commands(), INSTRUMENT)}
    return {name: guide for name, guide in guides.items() if guide.is_file()} | {
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
