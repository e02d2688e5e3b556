"""The server: each tool is a question about a run, its answer a document with units, ids and note codes.

Protocol and transport are those of the official SDK (the extra `mcp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import to_builtins

from trace_export import api
from trace_export.agents.runs import Runs
from trace_export.agents.sql import Database
from trace_export.analysis.report_document import slowdown_document
from trace_export.errors import TraceExportError, UsageError, missing_extra
from trace_export.messages import NOTES

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

MOST_ROWS = 1000
INSTRUCTIONS = """Profiles of pipeline-parallel training runs. Names that end in _ns are nanoseconds, on the aligned
clock of all hosts where they are times; shares go from 0 to 1; null is unknown. A block is a forward (F), backward (B),
weight gradient (W), overlapped pair (FB) or optimizer (OPT) on a rank; `id` names it in all answers. Notes have a code,
which `explain_note` explains. Ask `runs` for the names of the runs, `report` for the answer first, `query` for anything
else."""


def server(paths: Sequence[Path]) -> MCPServer[Any]:
    """The server for the runs at `paths`. Raises UsageError where one does not exist or the SDK is not installed."""
    try:
        from mcp.server.mcpserver import Image, MCPServer
    except ImportError as error:
        raise missing_extra("trace-export mcp", "mcp") from error
    answers = Answers(Runs(paths))
    made: MCPServer[Any] = MCPServer("trace-export", instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in (
        answers.runs, answers.inspect, answers.report, answers.slowdown, answers.critical_path, answers.compare,
        answers.query, answers.explain_note,
    ):  # fmt: skip
        made.tool(structured_output=False)(_answering(tool))

    @made.tool(structured_output=False)
    @_answering
    def picture(run: str, steps: str = "all", bubbles: bool = False) -> Any:  # the SDK evaluates annotations
        """The chart of a run as a PNG: a row a stage, a panel a step. `steps`: "2-4,7" or all (the first three)."""
        return Image(data=answers.png(run, steps, bubbles=bubbles), format="png")

    return made


def _answering(tool: Callable[..., Any]) -> Callable[..., Any]:
    """`tool`, whose refusals are answers and not crashes of the server."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def answer(*args: Any, **given: Any) -> Any:
        try:
            return tool(*args, **given)
        except TraceExportError as error:
            raise ToolError(str(error)) from error

    return answer


class Answers:
    """The questions. Each raises a TraceExportError with one sentence where it has no answer."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._database = cache(self._tables)

    def runs(self) -> dict[str, Any]:
        """The names of the runs that can be asked about."""
        return {"runs": list(self._runs.paths)}

    def inspect(self, run: str) -> dict[str, Any]:
        """What the profiles of a run hold, whether they can be drawn, and what is missing."""
        return _document(api.inspect(self._runs.path(run)).json())

    def report(self, run: str, steps: str = "all", sections: list[str] | None = None) -> dict[str, Any]:
        """Why steps take as long as they do. Without `sections` the verdict (sentences with their figures), the
        causes, schedule, steps, stages and notes; `sections` names others, such as levels, trust, idle, links, what_if,
        definitions, clocks; a wrong one is answered by their list."""
        usual = ["verdict", "causes", "schedule", "steps", "stages", "notes"]
        return _chosen(self._report(run, steps), sections or usual)

    def slowdown(self, run: str) -> dict[str, Any]:
        """How many times slower the steps are than without stragglers (S), by type of operation, replica, stage and
        rank (arXiv 2505.05713); M_S and M_W: the share of the lost time that is won back with the last stage, with the
        slowest ranks, of usual speed."""
        answer: dict[str, Any] = to_builtins(slowdown_document(self._runs.run(run).what_if()))
        return answer

    def critical_path(self, run: str, steps: str = "all") -> dict[str, Any]:
        """For each step the parts of its longest chain, which add up to its length, and the causes with the gain that a
        replay predicts."""
        return _chosen(self._report(run, steps), ["critical_path", "causes"])

    def compare(self, a: str, b: str) -> dict[str, Any]:
        """How run B differs from run A: step time, bubble and its causes, every kind of block on every stage."""
        return _document(self._runs.run(a).compare(self._runs.run(b)).json())

    def query(self, run: str, sql: str, limit: int = 100) -> dict[str, Any]:
        """One SELECT (SQLite) on the tables of a run: blocks, ranks, hosts, messages, collectives, steps. `select *
        from blocks limit 1` shows the columns. At most `limit` rows (1 to 1000); `truncated` says whether there are
        more."""
        if not 1 <= limit <= MOST_ROWS:
            raise UsageError(f"{limit} is not a number from 1 to {MOST_ROWS}", parameter="limit")
        return self._database(run).rows(sql, limit)

    def explain_note(self, code: str) -> dict[str, str]:
        """What a note with this code means and what to do about it."""
        if code not in NOTES:
            raise UsageError(f'there is no note "{code}"', "take a code of a note", parameter="code")
        return {"code": code, "meaning": NOTES[code].meaning, "action": NOTES[code].action}

    def png(self, run: str, steps: str, *, bubbles: bool) -> bytes:
        """The chart as a PNG."""
        with TemporaryDirectory() as folder:
            (path,) = self._runs.run(run, steps).write(Path(folder) / "chart.png", bubbles=bubbles)
            return path.read_bytes()

    def _report(self, run: str, steps: str) -> dict[str, Any]:
        return _document(self._runs.run(run, steps).report().json())

    def _tables(self, name: str) -> Database:
        run = self._runs.run(name)
        return Database({
            "blocks": run.spans, "ranks": run.ranks, "hosts": run.hosts, "messages": run.messages,
            "collectives": run.collectives, "steps": run.report().steps,
        })  # fmt: skip


def _document(text: str) -> dict[str, Any]:
    document: dict[str, Any] = orjson.loads(text)
    return document


def _chosen(document: dict[str, Any], sections: Sequence[str]) -> dict[str, Any]:
    unknown = [name for name in sections if name not in document]
    if unknown:
        raise UsageError(f"{', '.join(unknown)} is unknown", f"choose from {', '.join(document)}", parameter="sections")
    return {name: document[name] for name in sections}
