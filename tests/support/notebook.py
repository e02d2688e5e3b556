"""The tour as a notebook, made from samples/example.py.

`python -m tests.support.notebook` writes it.
"""

import re
from typing import Any

import orjson

from tests.conftest import ROOT

SOURCE = ROOT / "samples" / "example.py"
PAGE = ROOT / "samples" / "example.ipynb"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cells() -> list[tuple[str, str]]:
    """The heading and the code of each cell of the source, whose docstring comes before the first one."""
    _, *parts = re.split(r"^# %% ", SOURCE.read_text("utf-8"), flags=re.M)
    return [(heading.strip(), code.strip()) for heading, _, code in (part.partition("\n") for part in parts)]


def notebook() -> str:
    """The file (nbformat 4.5), without outputs."""
    title = SOURCE.read_text("utf-8").split('"""')[1].split(" in cells")[0]
    made = [_cell(0, "markdown", f"# {title}")]
    for heading, code in cells():
        made += [_cell(len(made), "markdown", heading), _cell(len(made) + 1, "code", code)]
    document = {
        "cells": made,
        "metadata": {"kernelspec": KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    lines = text.splitlines(keepends=True)
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines, **more}


if __name__ == "__main__":
    PAGE.write_text(notebook(), encoding="utf-8")
