"""An agent's client asks the server questions whose answers are known from the model that made the run."""

import asyncio
import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import trace_export
from tests.conftest import ROOT
from trace_export import UsageError
from trace_export.agents.runs import Runs
from trace_export.agents.sql import Database

STAGES, MICROBATCHES, STEPS, MS = 4, 8, 3, 1_000_000
Question = tuple[str, dict[str, Any]]


def table(path: Path, forward_ms: int) -> Path:
    """1F1B on 4 stages with 8 micro-batches, a backward twice a forward, three steps."""
    costs = {"forward": forward_ms * MS, "backward": 2 * forward_ms * MS}
    one = trace_export.simulate("1f1b", STAGES, MICROBATCHES, costs).spans
    length = int(one["end_ns"].max())  # type: ignore[arg-type]
    spans = pl.concat(
        one.with_columns(pl.col("start_ns", "end_ns") + n * length, step=pl.lit(n, pl.Int32)) for n in range(STEPS)
    )
    columns = ["step", "kind", "microbatch", "chunk", "start_ns", "end_ns"]
    spans.select("rank", pl.lit("h").alias("host"), pl.col("rank").alias("stage"), *columns).write_parquet(path)
    return path


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        table(folder / "fast.parquet", 1),
        table(folder / "slow.parquet", 2),
        ROOT / "samples" / "paddle" / "single",
    ]


def ask(places: Sequence[Path], questions: Sequence[Question]) -> list[Any]:
    """The answers of one server, started as an agent's program starts it: documents, or texts of errors."""
    pytest.importorskip("mcp")
    from mcp import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    async def answers() -> list[Any]:
        arguments = ["-m", "trace_export", "mcp", *map(str, places)]
        server = StdioServerParameters(command=sys.executable, args=arguments, env={"PYTHONPATH": str(ROOT)})
        actual = []
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            for tool, given in questions:
                result: Any = await session.call_tool(tool, given)
                (content,) = result.content
                if result.is_error:
                    actual.append(content.text)
                elif content.type == "image":
                    actual.append(base64.b64decode(content.data))
                else:
                    actual.append(json.loads(content.text))
        return actual

    return asyncio.run(answers())


def query(sql: str, **more: Any) -> Question:
    return "query", {"run": "fast.parquet", "sql": sql, **more}


BUBBLE = (STAGES - 1) / (MICROBATCHES + STAGES - 1)
STEP = (MICROBATCHES + STAGES - 1) * 3 * MS


def test_twenty_questions(places: list[Path]) -> None:
    questions: dict[str, Question] = {
        "runs": ("runs", {}),
        "verdict": ("inspect", {"run": "single"}),
        "report": ("report", {"run": "fast.parquet"}),
        "steps": ("report", {"run": "fast.parquet", "sections": ["steps"]}),
        "one step": ("report", {"run": "fast.parquet", "steps": "1", "sections": ["steps"]}),
        "theory": ("report", {"run": "fast.parquet", "sections": ["closed_form"]}),
        "slowdown": ("slowdown", {"run": "fast.parquet"}),
        "path": ("critical_path", {"run": "fast.parquet"}),
        "compare": ("compare", {"a": "fast.parquet", "b": "slow.parquet"}),
        "count": query("select count(*) from blocks"),
        "kinds": query("select kind, count(*) from blocks group by kind order by kind"),
        "longest": query("select max(end_ns - start_ns) from blocks where kind = 'B'"),
        "ranks": query("select rank, stage from ranks order by rank"),
        "limited": query("select id from blocks order by id", limit=2),
        "note": ("explain_note", {"code": "blocks-missing"}),
        "picture": ("picture", {"run": "fast.parquet", "steps": "0"}),
        "no run": ("report", {"run": "../fast.parquet"}),
        "no section": ("report", {"run": "fast.parquet", "sections": ["nothing"]}),
        "attach": query("attach database '/etc/passwd' as other"),
        "change": query("delete from blocks"),
        "no note": ("explain_note", {"code": "nothing"}),
    }
    result = dict(zip(questions, ask(places, list(questions.values())), strict=True))
    assert result["runs"] == {"runs": ["fast.parquet", "slow.parquet", "single"]}
    assert "1F1B" in result["verdict"]["verdict"]
    assert len(result["verdict"]["ranks"]) == STAGES
    assert result["report"]["schedule"]["name"] == "1f1b"
    assert result["report"]["schedule"]["microbatches"] == MICROBATCHES
    assert [step["bubble"] for step in result["steps"]["steps"]] == pytest.approx([BUBBLE] * STEPS)
    assert [step["pipeline_ns"] for step in result["one step"]["steps"]] == [STEP]
    assert result["theory"]["closed_form"]["idle_ns"] == (STAGES - 1) * 3 * MS
    assert result["slowdown"]["S"] == pytest.approx(1)
    paths = result["path"]["critical_path"]
    assert [path["length_ns"] for path in paths] == [STEP] * (STEPS - 1)
    assert all(sum(part["ns"] for part in path["parts"]) == STEP for path in paths)
    times = {row["what"]: row for row in result["compare"]["whole"]}
    assert times["pipeline time"]["change"] == pytest.approx(1)
    assert result["count"]["rows"] == [[2 * MICROBATCHES * STAGES * STEPS]]
    assert result["kinds"]["rows"] == [[kind, MICROBATCHES * STAGES * STEPS] for kind in "BF"]
    assert result["longest"]["rows"] == [[2 * MS]]
    assert result["ranks"] == {
        "columns": ["rank", "stage"], "rows": [[n, n] for n in range(STAGES)], "truncated": False
    }  # fmt: skip
    assert result["limited"]["truncated"] and len(result["limited"]["rows"]) == 2
    assert "fewer blocks in a step" in result["note"]["meaning"]
    assert result["picture"].startswith(b"\x89PNG")
    assert 'there is no run "../fast.parquet"; choose one of fast.parquet, slow.parquet, single' in result["no run"]
    assert "nothing is unknown; choose from" in result["no section"]
    assert "the query fails: not authorized" in result["attach"]
    assert "the query fails: not authorized" in result["change"]
    assert 'there is no note "nothing"' in result["no note"]


ENDLESS = "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"


@pytest.mark.parametrize("sql", [
    "select load_extension('x')", "pragma table_list", "create table t (a)", "insert into blocks values (1)",
    "attach 'x' as y", "vacuum into 'x'", "select 1; select 2", "begin", "", ENDLESS,
    "select hex(zeroblob(100000000))",
])  # fmt: skip
def test_nothing_but_a_short_query_is_answered(sql: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trace_export.agents.sql.MOST_OPERATIONS", 3_000_000)
    database = Database({"blocks": pl.DataFrame({"id": [1, 2]})})
    with pytest.raises(UsageError, match=r"^sql: "):
        database.rows(sql, 10)
    assert list(tmp_path.iterdir()) == []
    assert database.rows("select sum(id) from blocks", 1)["rows"] == [(3,)]


def test_places(tmp_path: Path) -> None:
    for name in ("a/logs", "b/logs"):
        (tmp_path / name).mkdir(parents=True)
    runs = Runs([tmp_path / "a" / "logs", tmp_path / "b" / "logs"])
    assert list(runs.paths) == ["logs", "logs-2"]
    with pytest.raises(UsageError, match=r"there is no .*nowhere; name the folders"):
        Runs([tmp_path / "nowhere"])
