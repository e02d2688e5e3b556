"""Values that are converted without Pydantic become what Typer makes of them, and what is wrong is refused alike."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.main import get_command

from tests.conftest import ROOT
from trace_export.cli.values import convert_plainly

SAMPLE = ROOT / "samples" / "paddle" / "two_machines"
EXPORT = """import sys
from trace_export.cli import main
try:
    main(sys.argv[1:])
finally:
    print({"pydantic", "rich"} & set(sys.modules))
"""
GIVEN: list[list[str]] = [
    [], ["--count", "12"], ["--count", "-3"], ["--count", " 7"], ["--count", "1_0"], ["--count", "٣"], ["--count", "x"],
    ["--count", "1" * 30], ["--count", ""], ["--path", "nowhere"], ["--path", "."], ["--path", "a/../b//c/"],
    ["--path", ""], ["folder", "other"], ["--text", ""], ["--text", "12"], ["--more", "a", "--more", "b=c"], ["--flag"],
    ["--word", "one"], ["--word", "three"], ["--share", "0.5"], ["--share", "much"],
]  # fmt: skip


def show(
    folders: Annotated[list[Path] | None, typer.Argument()] = None,
    path: Path | None = None,
    text: str = "all",
    more: list[str] | None = None,
    count: int | None = None,
    first: int = 0,
    flag: bool = False,
    letters: Annotated[bool | None, typer.Option("--letters/--no-letters")] = None,
    word: Literal["one", "two"] = "two",
    share: float = 1.0,
) -> list[object]:
    return [folders, path, text, more, count, first, flag, letters, word, share]


def needed(sources: list[Path], rank: Annotated[int, typer.Option()]) -> list[object]:
    return [sources, rank]


def called(function: Callable[..., object], arguments: list[str], *, plainly: bool) -> tuple[object, object]:
    """What a command was called with, or the error that refuses its arguments and its sentence."""
    app = typer.Typer(add_completion=False)
    app.command()(function)
    command: Any = get_command(app)
    if plainly:
        convert_plainly(command.params)
        convert_plainly(command.params)  # changes nothing more
    try:
        return command.main(arguments, standalone_mode=False), ""
    except Exception as error:
        return type(error), error.format_message()  # type: ignore[attr-defined]  # an exception of Typer


@pytest.mark.parametrize("arguments", GIVEN, ids=" ".join)
def test_a_value_becomes_what_typer_makes_of_it(arguments: list[str]) -> None:
    assert called(show, arguments, plainly=True) == called(show, arguments, plainly=False)


@pytest.mark.parametrize("arguments", [["a", "b", "--rank", "3"], ["a"], ["--rank", "3"], []], ids=" ".join)
def test_what_must_be_given_is_asked_for(arguments: list[str]) -> None:
    assert called(needed, arguments, plainly=True) == called(needed, arguments, plainly=False)


def test_a_small_export_into_a_pipe_needs_neither_pydantic_nor_rich(tmp_path: Path) -> None:
    arguments = ["export", str(SAMPLE), "--out", str(tmp_path), "--pp", "4", "--jobs", "1"]
    done = subprocess.run([sys.executable, "-c", EXPORT, *arguments], check=True, capture_output=True, text=True)
    assert done.stdout.endswith("\nset()\n")
