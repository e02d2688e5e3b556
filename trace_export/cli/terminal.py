"""What the user sees on the terminal: progress on stderr, a short table, notes, the files and the next command."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO, TypeAlias

from trace_export.errors import SourceError, TraceExportError, path_text, printable
from trace_export.options import Export, in_words_of
from trace_export.units import cells_of

if TYPE_CHECKING:
    from rich.console import Console

    from trace_export.answer import ReportTable, Sentence
    from trace_export.model import Note
    from trace_export.progress import Progress as Reporter
    from trace_export.run import Run

NAMED = ("clock-not-aligned", "clock-without-wall-time", "ranks-missing", "runs-not-read", "stages-missing")
"""Codes of notes that name what they count."""
NOTES_SHOWN = 20
ALIKE_SHOWN = 4
"""Sources that an error names besides the first."""
WIDE = 240
"""Columns where nobody looks at a terminal: a line of a table stays one line in a file or a pipe."""
PROSE = 80
"""Columns of prose where there are more."""
AS_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables by which Rich takes a pipe for a terminal."""
_CONTROLS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Those above ASCII that terminals obey."""


class Plain:
    """What a file or a pipe gets: the text alone. Rich takes 15 ms to load, and knows nothing of use to them."""

    is_terminal = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns

    def print(self, text: str = "", style: str | None = None, end: str = "\n") -> None:
        print(text, end=end, file=self._stream)


Out: TypeAlias = "Console | Plain"


def output(*, error: bool = False) -> Out:
    """Where to print text: Rich's console for a terminal, else the stream as it is."""
    stream = sys.stderr if error else sys.stdout
    if stream is None or stream.isatty() or any(map(os.environ.get, AS_TERMINAL)):
        return console(error=error)
    return Plain(stream)


def console(*, error: bool = False) -> Console:
    """Colours only on a terminal; never wraps a path that somebody may want to copy. Text is shown as it is: names of
    files and hosts may look like markup."""
    from rich.console import Console

    return Console(stderr=error, highlight=False, soft_wrap=True, markup=False, emoji=False)


@contextmanager
def progress(printing: Mapping[str, object]) -> Iterator[Reporter]:
    """A bar on stderr while work goes on, only where somebody sees it."""
    if printing.get("quiet") or printing.get("json") or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    counts = TextColumn("{task.fields[counts]}", markup=False)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), counts, TimeElapsedColumn())
    with Progress(*columns, console=console(error=True), transient=True) as bar:
        task = bar.add_task("looking for profiles", total=None, counts="")

        def report(what: str, done: int, total: int) -> None:
            """What is one piece of work has no parts to count: the bar moves to and fro."""
            parts = {"total": total, "counts": f"{done}/{total}"} if total > 1 else {"total": None, "counts": ""}
            bar.update(task, description=printable(what), completed=done, **parts)

        yield report


def json(text: str) -> None:
    """A JSON document on standard output, in UTF-8 whatever the terminal's encoding, since programs read it.

    Control characters that JSON allows as they are, and those that reverse text, are escaped: they may be in names.
    """
    escaped = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    sys.stdout.flush()
    sys.stdout.buffer.write(escaped.encode() + b"\n")


def size(path: Path) -> str:
    """A file's size as people read it."""
    try:
        value = float(path.stat().st_size)
    except OSError:  # somebody has moved it since
        return "gone by now"
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def facts(rows: Sequence[tuple[str, str]]) -> None:
    """Names in bold, and their values."""
    out = output()
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        label = f"{name:<{width}}  "
        out.print(label, style="bold", end="")
        out.print(folded(out, printable(value), len(label), len(label)))


def tables(items: Sequence[ReportTable]) -> None:
    """Each table with its title above and its note below: the leading rows, and all that are flagged (in bold)."""
    from rich.console import Console
    from rich.table import Table

    out = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE, markup=False, emoji=False)
    for item in items:
        out.print(item.title, style="bold")
        rows = item.leading()
        if rows:
            table = Table(box=None, pad_edge=False)
            columns = [column for column in item.frame if column.name not in item.details]
            for column in columns:
                table.add_column(column.name, justify="right" if column.dtype.is_numeric() else "left")
            cells = [cells_of(column, yes="yes", no="") for column in columns]
            for row in rows:
                table.add_row(*(column[row] for column in cells), style="bold" if row in item.flagged else None)
            out.print(table)
        for text in _below(item, len(rows)):
            paragraph(out, text, style="dim")
        out.print()


def answer(said: Sequence[Sentence]) -> None:
    """Each sentence from a line of its own, the first one in bold, and below it what to do next."""
    out = output()
    for number, sentence in enumerate(said):
        paragraph(out, sentence.text, style=None if number else "bold")
        if sentence.next:
            paragraph(out, f"→ {sentence.next}", indent="  ", hanging=4)
    out.print()


def lead(text: str) -> None:
    """What was measured, above the answer."""
    out = output()
    paragraph(out, text, style="dim")
    out.print()


def lines(texts: Sequence[str]) -> None:
    """Each text on a line of its own, and an empty line after them."""
    out = output()
    for each in texts:
        out.print(printable(each))
    if texts:
        out.print()


def text(document: str) -> None:
    """A document on standard output, as it is."""
    output().print(document, end="")


def paragraph(out: Out, text: str, style: str | None = None, indent: str = "", hanging: int | None = None) -> None:
    """Prose, in lines that are read with ease wherever it goes; in a terminal that says it has no width, too."""
    width = max(min(out.width, PROSE), PROSE // 2)
    later = indent if hanging is None else " " * hanging
    lines = wrap(
        printable(text), width, initial_indent=indent, subsequent_indent=later, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    for line in lines:
        out.print(line, style=style)


def folded(out: Out, text: str, taken: int, indent: int = 2) -> str:
    """A text of one line after `taken` columns: on a terminal in lines of its width, each but the first behind `indent`
    columns, broken at blanks only, so that paths stay whole; elsewhere as it is, for it may be searched by lines."""
    if not out.is_terminal:
        return text
    indents = {"initial_indent": " " * taken, "subsequent_indent": " " * indent}
    parts = wrap(text, max(out.width, PROSE // 2), break_long_words=False, break_on_hyphens=False, **indents)  # type: ignore[arg-type]
    return "\n".join(parts)[taken:]


def _below(item: ReportTable, shown: int) -> Iterator[str]:
    if item.note:
        yield item.note
    if item.left_out:
        yield f"{item.left_out} more: --full"
    if more := item.frame.height - shown:
        yield f"{more} more rows; --json lists them all"


def notes(items: Sequence[Note], verbose: bool = False) -> None:
    """Warnings first, and what several sources have in common once; details with `verbose` only."""
    out = output(error=True)
    groups = _alike([note for note in items if verbose or note.level != "detail"])
    for alike in groups[:NOTES_SHOWN]:
        note, count = alike[0], sum(each.count for each in alike)
        others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
        where = f" ({note.where}{others})" if note.where else ""
        style = "yellow" if note.level == "warning" else "dim"
        code = f"[{note.code}]"
        times = f"{count} × " if count > 1 and note.code not in NAMED else ""
        said = printable(f"{times}{note.text}{where}")
        out.print(f"{note.level}: ", style=style, end="")
        out.print(folded(out, f"{said} {code}", len(f"{note.level}: ")).removesuffix(code), end="")
        out.print(code, style="dim")
    if len(groups) > NOTES_SHOWN:
        out.print(f"… and {len(groups) - NOTES_SHOWN} more; --json lists them all")


def _alike(items: Sequence[Note]) -> list[list[Note]]:
    """Notes of one code, level and text, whatever numbers are in it, together; warnings first."""
    groups: dict[tuple[str, str, str], list[Note]] = {}
    for note in items:
        words = re.sub(r"[0-9.]+", "0", note.text) if note.where else note.text
        groups.setdefault((note.level, note.code, words), []).append(note)
    levels = ("warning", "note", "detail")
    return sorted(groups.values(), key=lambda alike: levels.index(alike[0].level))


def notes_of_two(names: tuple[str, str], items: tuple[Sequence[Note], Sequence[Note]], verbose: bool = False) -> None:
    """The notes of two runs: what both have, once, and the others with the name of their run."""
    a, b = items
    both = [note for note in a if note in b]
    notes(both, verbose)
    for name, of_run in zip(names, items, strict=True):
        notes([replace(note, text=f"{name}: {note.text}") for note in of_run if note not in both], verbose)


def errors(items: Sequence[TraceExportError], debug: bool = False) -> None:
    """One sentence for each input that could not be read, or for all that could not be for the same reason; with
    `debug` also where a reader of ours went wrong."""
    if not items:
        return
    out = output(error=True)
    for alike in _by_reason(items):
        out.print("error: ", style="red", end="")
        out.print(folded(out, str(in_words_of(Export, alike[0])), len("error: ")))
        if len(alike) > 1:
            others = [path_text(error.path) for error in alike[1:] if isinstance(error, SourceError)]
            out.print(f"       the same for {len(others)} more: {printable(', '.join(others[:ALIKE_SHOWN]))}", end="")
            out.print(", …" if len(others) > ALIKE_SHOWN else "")
        for error in alike:
            for traceback in getattr(error, "__notes__", ()) if debug else ():
                out.print("\n".join(map(printable, traceback.splitlines())))


def lost(rows: Sequence[tuple[str, str, int]], sources: int) -> None:
    """One line for each reason (what is wrong, the first error, how many sources) why some of `sources` are missing."""
    out = output(error=True)
    for _, first, count in rows:
        out.print("error: ", style="red", end="")
        more = f" (the same for {count - 1} more of {sources} sources)" if count > 1 else ""
        out.print(printable(first) + more)


def _by_reason(items: Sequence[TraceExportError]) -> list[list[TraceExportError]]:
    """Errors that say the same of several sources together."""
    groups: dict[object, list[TraceExportError]] = {}
    for error in items:
        reason = _reason(error) if isinstance(error, SourceError) else id(error)
        groups.setdefault(reason, []).append(error)
    return list(groups.values())


def _reason(error: SourceError) -> tuple[str, ...]:
    """What an error says, whichever file it says it of and whatever numbers are in it."""
    named = (str(text).replace(str(error.path), "").replace(error.path.name, "") for text in error.args[1:])
    return tuple(re.sub(r"[0-9.]+", "0", text) for text in named)


def conclude(runs: Sequence[Run], printing: Mapping[str, object]) -> int:
    """Prints the errors of sources that could not be read; the exit code of a command that did its work."""
    failures = [failure for run in runs for failure in run.failures]
    errors(failures, debug=bool(printing.get("debug")))
    warned = any(note.level == "warning" for run in runs for note in run.notes)
    return 3 if failures or (printing.get("strict") and warned) else 0


def files(paths: Sequence[Path]) -> None:
    """What was written, and the command that shows it; of databases only their folder and how many they are."""
    out = output()
    databases = [path for path in paths if path.suffix == ".db"]
    for path in paths:
        if path not in databases:
            out.print(f"wrote {printable(path)} ({size(path)})")
    if databases:
        folder = Path(os.path.commonpath([path.parent for path in databases]))
        out.print(f"wrote the table StepTaskInfo into databases below {printable(folder)}: {len(databases)}")
        out.print(f"open it:  the folder {printable(folder)} in MindStudio Insight")
    pages = [path for path in paths if path.suffix in (".html", ".svg")]
    if pages:
        out.print(f"open it:  {printable(pages[0])} in a browser")
    traces = (".pftrace", ".pftrace.gz", ".json", ".json.gz")
    viewable = [p for p in paths if p.name.endswith(traces) and p.name != "clock_alignment.json"]
    if viewable:
        out.print(f"open it:  trace-export open {printable(quote(str(viewable[0])))}")
        out.print("          (or drop it on ui.perfetto.dev)")


def failure(text: str) -> None:
    """Why the command fails although it did its work."""
    out = output(error=True)
    out.print("failed: ", style="red", end="")
    out.print(printable(text))


def hint(text: str) -> None:
    """Where to find what was asked for."""
    output().print(text, style="dim")
