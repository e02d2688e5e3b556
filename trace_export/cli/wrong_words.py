"""What is wrong with the words of a command line, as one sentence, like every other error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

STEP_TASKS = "trace-export export DIR --step-task-info writes the table that pp_chart writes"
FOLDER = "the folder is given as it is or as --log_dir DIR, local worker indexes as --devices 0,1"
HINTS = {
    "-d": FOLDER, "--profiling-path": FOLDER, "--kernels": "did you mean --detail kernels?",
    "-m": STEP_TASKS, "--mode": STEP_TASKS,
    "-o": "did you mean --out?", "--output": "did you mean --out?", "--output-path": "did you mean --out?",
}  # fmt: skip
"""What those mean who use the words of other programs for the same."""
NOT_LIVE = {"--steps": "give their number with --last", "--time": "give their number with --last",
            "--json": "use --jsonl FILE, a line for each step",
            "--out": "draw the steps so far with export", "--format": "draw the steps so far with export",
            "--once-every": "draw the steps so far with export"}  # fmt: skip
"""What a watch has in place of options of other commands."""
SIMULATED = {
    "--pp": "did you mean --stages?",
    "--mb": "did you mean --microbatches?",
    "--vpp": "did you mean --chunks?",
}
"""What a simulation calls the sizes that other commands read from profiles."""
ALIKE = 0.7


def sentence(error: Any) -> str | None:
    """The sentence of an error of the parser; None for any other error."""
    if not hasattr(error, "format_message"):
        return None
    what, remedy = _of_option(error) if hasattr(error, "option_name") else _of_words(error)
    what = what or _plain(error.format_message())
    command = getattr(getattr(error, "ctx", None), "command_path", "trace-export")
    return f"{what}; {remedy or f'see {command} --help'}"


def _of_option(error: Any) -> tuple[str, str]:
    """What is wrong with an option and what to do, where it is one that does not exist."""
    possible: Sequence[str] | None = getattr(error, "possibilities", None)
    if possible is None and "No such option" not in error.format_message():
        return "", ""
    name = error.option_name
    meant = get_close_matches(name, possible or (), n=1, cutoff=ALIKE)
    command = getattr(getattr(error, "ctx", None), "info_name", "")
    hints = HINTS | {"watch": NOT_LIVE, "simulate": SIMULATED}.get(command, {})
    return f"there is no option {name}", hints.get(name) or (f"did you mean {meant[0]}?" if meant else "")


def _of_words(error: Any) -> tuple[str, str]:
    """What is wrong with words that are no options, and what to do, where a command takes fewer."""
    extra = re.search(r"unexpected extra argument\S* \((.+)\)", error.format_message())
    if extra is None:
        return "", ""
    command = getattr(getattr(error, "ctx", None), "info_name", "")
    remedy = f"name the schedule with --schedule {extra[1].split()[0]}" if command == "simulate" else ""
    return f'{command} does not take "{extra[1]}" as well', remedy


def _plain(message: str) -> str:
    """A message of the parser as a part of our sentence."""
    text = message.strip().rstrip(".")
    return text[:1].lower() + text[1:]
