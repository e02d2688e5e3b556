"""The import rule of the house: data flows one way, so a room knows only what stands before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "trace_export"
GROUND = {"choices", "model", "errors", "units", "selection", "schedules"}
ROOMS = {"sources", "pipeline", "clocks", "analysis", "chart", "writers", "viewer", "workers"}
SPINE = {"api", "export", "render", "inspection", "__init__", "__main__", "cli", "instrument"}
DOORS = {("analysis", "pipeline"), ("writers", "chart"), ("viewer", "chart")}
"""Rooms that may know another room."""

FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """The rooms of this package that a file imports, wherever in the file."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = (
                [f"{node.module}.{a.name}" for a in node.names]
                if node.module == "trace_export"
                else [node.module or ""]
            )
        rooms |= {name.split(".")[1] for name in names if name.startswith("trace_export.")}
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_only_what_stands_before_it(path: Path) -> None:
    room = room_of(path)
    known = imported_rooms(path)
    if room in GROUND:
        assert known <= GROUND
    elif room in ROOMS:
        allowed = GROUND | {room} | {to for of, to in DOORS if of == room}
        assert known <= allowed, f"{room} may not know {sorted(known - allowed)}"
    else:
        assert room in SPINE, f"{room} is neither room nor spine: say where it stands"


def test_instrument_needs_nothing_of_the_program() -> None:
    """A training script imports it: it must not pull in tables and readers."""
    for path in FILES:
        if room_of(path) == "instrument":
            assert imported_rooms(path) <= {"instrument"}, path


def test_no_import_circle_in_the_ground() -> None:
    assert imported_rooms(PACKAGE / "errors.py") == set()
    assert imported_rooms(PACKAGE / "choices.py") == set()
    assert imported_rooms(PACKAGE / "model.py") <= {"errors"}
    assert imported_rooms(PACKAGE / "units.py") <= {"errors"}
    assert imported_rooms(PACKAGE / "selection.py") <= {"errors", "model", "units"}
