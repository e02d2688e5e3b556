"""`trace-export compare A B`: two runs, two steps of one, or a run and a baseline, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn, Unpack

import typer

from trace_export.cli import terminal
from trace_export.errors import UsageError
from trace_export.options import Compare, Comparing, Saving, part

TEXTS = ("text", "markdown", "json")
"""The words of --format that say how the result is printed; all others are files of a chart."""
FAILED = 4
"""Exit code where B is worse than the limit allows."""


def compare(**given: Unpack[Compare]) -> None:
    """Compare two runs, or two steps of one: how their steps differ, and why, by levels, causes and blocks.

    With --fail-above the exit code is 4 if B is worse.

    In the chart that --out asks for, the tracks of B lie below those of A, and both begin every step at the same time.
    """
    from trace_export import api
    from trace_export.analysis import baseline as kept
    from trace_export.run import Run

    asked = given["formats"]
    output, formats = (asked, None) if asked in TEXTS else ("text", asked)
    as_json = given["json"] or output == "json"
    a, b, path, baseline = given["a"], given["b"], given["path"], given["baseline"]
    if given["save"]:
        if baseline is None or b is not None or given["fail_above"] is not None:
            what = "--save writes --baseline FILE from a single run"
            raise UsageError(what, "give one run, and no --fail-above with --save")
        if path is not None or formats is not None or output == "markdown":
            raise UsageError("--save keeps figures and draws nothing", "leave out --out, and any --format but json")
        _save(given, baseline, as_json=as_json)
    if baseline is not None:
        if b is not None:
            raise UsageError("--baseline FILE takes the place of A", "give one run")
        kept.read(baseline)  # any other file is refused as such, not as a folder without profiles
        if given["steps_a"] is not None or given["steps_b"] is not None:
            what = "with a baseline there is one run only"
            raise UsageError(what, "give --steps, and neither --steps-a nor --steps-b")
        a, b = baseline, a
    with terminal.progress(given) as progress:
        options: Comparing = {**part(given, Comparing), "progress": progress}
        done = api.compare(a, b, path, formats, **options)
    runs = [run for run in (done.a, done.b) if isinstance(run, Run)]
    if as_json:
        terminal.json(done.comparison.json())
    elif output == "markdown":
        terminal.text(done.comparison.markdown(full=given["full"]))
    elif not given["quiet"]:
        both, full = done.comparison, given["full"]
        terminal.answer(both.verdict if full else both.answer)
        terminal.tables(both.tables() if full else both.brief())
        if not full:
            terminal.hint("All tables: --full.")
        notes = [getattr(side, "notes", ()) for side in (done.a, done.b)]
        terminal.notes_of_two(done.comparison.names, (notes[0], notes[1]), given["verbose"])
        terminal.files(done.files)
    gate = done.comparison.gate
    if gate is not None and gate.failed:
        terminal.failure(gate.sentence)
        raise typer.Exit(FAILED)
    raise typer.Exit(terminal.conclude(runs, given))


def _save(given: Compare, baseline: Path, *, as_json: bool) -> NoReturn:
    """Keeps the figures of the only run in a file."""
    from trace_export import api

    with terminal.progress(given) as progress:
        options: Saving = {**part(given, Saving), "progress": progress}
        saved = api.save_baseline(given["a"], baseline, **options)
    if as_json:
        terminal.json(baseline.read_text(encoding="utf-8"))
    elif not given["quiet"]:
        terminal.hint(
            f"kept the figures of {saved.name}; compare a run with them: trace-export compare RUN --baseline {baseline}"
        )
    raise typer.Exit(terminal.conclude([saved], given))
