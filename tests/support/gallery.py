"""The pictures of docs/gallery.md, made by the commands that stand in the page: `python -m tests.support.gallery`."""

import shlex
from pathlib import Path

from typer.testing import CliRunner

from trace_export.cli.app import app

DOCS = Path(__file__).resolve().parents[2] / "trace_export" / "docs"


def draw(folder: Path) -> list[Path]:
    """Runs each command of the page, its outputs below `folder`, and returns these."""
    made = []
    for line in (DOCS / "gallery.md").read_text("utf-8").splitlines():
        if line.startswith("    trace-export "):
            *words, name = shlex.split(line)[1:]
            made.append(folder / name)
            made[-1].parent.mkdir(exist_ok=True)
            CliRunner().invoke(app, [*words, str(made[-1])], catch_exceptions=False)
    return made


if __name__ == "__main__":
    for path in draw(DOCS):
        print(path)
