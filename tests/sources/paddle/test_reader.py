"""Paddle logs from the command line to the span table, against what the generator knows."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

import trace_export
from samples.generators.paddle import Job, line, log, write_logs, write_records
from samples.generators.pipeline import US, Block
from tests.conftest import Cli
from tests.support.paddle_jobs import JOBS, RECORDS
from tests.support.rows import crossed


def table(folder: Path) -> list[tuple[object, ...]]:
    """The rows of an exported CSV table, with micro-batch and chunk only where a kind gives them a meaning."""
    return sorted(map(comparable, rows_of(folder / "pipeline_profile.csv")), key=str)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def comparable(row: dict[str, str]) -> tuple[object, ...]:
    numbered = row["kind"] in ("F", "B", "W")
    microbatch, chunk = (row["microbatch"], row["chunk"]) if numbered else ("", "")
    start, end = (row.get(f"{x}_ns") or str(int(row[f"{x}_us"]) * 1000) for x in ("start", "end"))
    return int(row["rank"]), row["step"], row["kind"], microbatch, chunk, int(start), int(end)


def truth(job: Job, blocks: list[Block]) -> list[tuple[object, ...]]:
    """The rows of the table that holds `blocks` as each machine's clock shows them."""
    rows = [
        {
            "rank": str(b.rank), "step": str(b.step), "kind": b.kind,
            "microbatch": str(b.microbatch), "chunk": str(b.chunk),
            "start_ns": str(b.start_ns + job.clock_error_us(b.rank) * US),
            "end_ns": str(b.end_ns + job.clock_error_us(b.rank) * US),
        }
        for b in blocks
    ]  # fmt: skip
    return sorted(map(comparable, rows), key=str)


def exported(run_cli: Cli, logs: Path, out: Path, *options: object) -> list[tuple[object, ...]]:
    result = run_cli("--log_dir", logs, "--out", out, "--format", "csv", "--align", "none", *options)
    assert result.returncode == 0, result.stderr
    return table(out)


@pytest.mark.parametrize("name", JOBS)
def test_every_block_of_a_job(name: str, run_cli: Cli, tmp_path: Path) -> None:
    job, logs = JOBS[name], tmp_path / "logs"
    blocks = write_logs(logs, job)
    assert exported(run_cli, logs, tmp_path / "out") == truth(job, blocks)


@pytest.mark.parametrize("evaluated", [(4,), (2, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("announced", [True, False])
def test_an_evaluation_takes_no_number_of_a_step(
    evaluated: tuple[int, ...], announced: bool, run_cli: Cli, tmp_path: Path
) -> None:
    job = Job(evaluated=evaluated, announced=announced, communication=True)
    blocks = write_logs(tmp_path / "logs", job)
    first = 0 if announced else job.steps.start
    numbered = [replace(b, step=b.step - first) if b.step >= 0 else b for b in blocks]
    wanted = [(row[0], "", *row[2:4], "0", *row[5:]) if int(str(row[1])) < 0 else row for row in truth(job, numbered)]
    assert exported(run_cli, tmp_path / "logs", tmp_path / "out") == sorted(wanted, key=str)


def test_an_evaluation_that_lost_a_record_stays_one(tmp_path: Path) -> None:
    """Other ranks have more forwards then."""
    write_logs(tmp_path, Job(evaluated=(3,)))
    path = tmp_path / "workerlog.2"
    lines = path.read_text().splitlines(keepends=True)
    optimizers = [n for n, text in enumerate(lines) if "type = optimizer" in text]
    lines.pop(next(n for n in range(optimizers[0], len(lines)) if "type = forward, micro_batch_id = 4" in lines[n]))
    path.write_text("".join(lines))
    profile = trace_export.load(tmp_path).profile
    assert profile.evaluations.group_by("rank").len().sort("rank")["len"].to_list() == [8, 8, 7, 8]
    assert profile.spans["step"].unique().sort().to_list() == [2, 3, 4]


@pytest.mark.parametrize("name", RECORDS)
def test_every_block_of_a_dynamic_graph(name: str, run_cli: Cli, tmp_path: Path) -> None:
    job, logs = RECORDS[name], tmp_path / "logs"
    blocks = write_records(logs, job)
    assert exported(run_cli, logs, tmp_path / "out") == truth(job, blocks)


@pytest.mark.parametrize(("name", "ranks"), crossed(JOBS, ["one", "all"]))
def test_a_log_with_every_line_twice(name: str, ranks: str, run_cli: Cli, tmp_path: Path) -> None:
    """As two handlers write it that log to one file."""
    job, logs = JOBS[name], tmp_path / "logs"
    blocks = write_logs(logs, job)
    written = sorted(logs.rglob("workerlog.*"))
    for path in written if ranks == "all" else written[:1]:
        path.write_text("".join(line * 2 for line in path.read_text().splitlines(keepends=True)))
    assert exported(run_cli, logs, tmp_path / "out") == truth(job, blocks)


@pytest.mark.parametrize(
    "lost",
    [{1: 8}, {0: 5, 1: 8, 2: 10, 3: 9}, {2: 21}, {0: 25, 1: 25}, {0: 10, 2: 30, 3: 21}],
    ids=["in the first step of one", "in the first step of all", "a step of one", "more of two", "more or less"],
)
@pytest.mark.parametrize("announced", [True, False])
def test_logs_whose_beginning_was_lost(announced: bool, lost: dict[int, int], run_cli: Cli, tmp_path: Path) -> None:
    """The steps of a rank are those that the others run at the same time, whatever its log lacks before them."""
    job = Job(steps=range(2, 5) if announced else range(3), announced=announced, lost=lost)
    blocks = write_logs(tmp_path / "logs", job)
    whole = {rank: log(job, blocks, rank).splitlines() for rank in range(job.ranks)}
    gone = {rank: sum("Profiler Info" in line for line in whole[rank][:lines]) for rank, lines in lost.items()}
    left = [b for rank in whole for b in [b for b in blocks if b.rank == rank][gone.get(rank, 0) :]]
    assert exported(run_cli, tmp_path / "logs", tmp_path / "out") == truth(job, left)


@pytest.mark.parametrize("lost", [{2: 23, 3: 23}, {0: 42, 1: 42}, {1: 23, 2: 23, 3: 30}])
@pytest.mark.parametrize("skew_us", [0, -7_000])
def test_a_machine_whose_logs_lack_their_beginning(
    lost: dict[int, int], skew_us: int, run_cli: Cli, tmp_path: Path
) -> None:
    job = Job(steps=range(1, 6), machines=2, clock_errors_us=(0, skew_us), lost=lost)
    blocks = write_logs(tmp_path / "logs", job)
    whole = {rank: log(job, blocks, rank).splitlines() for rank in range(job.ranks)}
    gone = {rank: sum("Profiler Info" in line for line in whole[rank][:lines]) for rank, lines in lost.items()}
    left = [b for rank in whole for b in [b for b in blocks if b.rank == rank][gone.get(rank, 0) :]]
    assert exported(run_cli, tmp_path / "logs", tmp_path / "out") == truth(job, left)


@pytest.mark.parametrize("steps", [-1, 1])
def test_a_clock_that_is_a_step_off_renumbers_nothing(steps: int, run_cli: Cli, tmp_path: Path) -> None:
    job = Job(steps=range(1, 6), machines=2)
    begins = [min(b.start_ns for b in job.blocks() if b.step == step) for step in (2, 3)]
    job = replace(job, clock_errors_us=(0, steps * (begins[1] - begins[0]) // US))
    blocks = write_logs(tmp_path / "logs", job)
    assert exported(run_cli, tmp_path / "logs", tmp_path / "out") == truth(job, blocks)


def test_no_announced_step_is_missed_where_the_logs_lack_their_beginning(tmp_path: Path) -> None:
    """The announcement before each step names the first one of all, not its own."""
    write_logs(tmp_path, Job(steps=range(1, 5), lost=dict.fromkeys(range(4), 44)))
    run = trace_export.load(tmp_path)
    codes = {note.code: note.level for note in run.align().report().notes}
    assert "steps-missing" not in codes
    assert codes["steps-truncated"] == "note"
    assert "blocks-missing" not in codes
    assert run.report().steps["whole"].to_list() == [False, True]


def test_ranks_that_wrote_into_one_log(run_cli: Cli, tmp_path: Path) -> None:
    """Two machines with one log_dir on a shared disk: the thread tells them apart."""
    job = Job(2, 4, range(1, 3))
    blocks = job.blocks()
    lines = [log(job, blocks, rank).splitlines(keepends=True) for rank in range(2)]
    mixed = [line for pair in zip(*lines, strict=True) for line in pair]
    (tmp_path / "workerlog.0").write_text("".join(mixed))
    assert exported(run_cli, tmp_path, tmp_path / "out") == truth(job, blocks)


def test_programs_without_a_pipeline(run_cli: Cli, tmp_path: Path) -> None:
    starts = [1_760_000_000_000 + 400 * step for step in range(3)]
    (tmp_path / "workerlog.0").write_text("".join(line(7, "default", 0, start, start + 372.5) for start in starts))
    rows = exported(run_cli, tmp_path, tmp_path / "out")
    assert [row[1:] for row in rows] == [
        (str(step), "", "", "", start * 10**6, start * 10**6 + 372_500_000) for step, start in enumerate(starts)
    ]


def test_the_logs_of_one_machine_are_called_after_it(run_cli: Cli, tmp_path: Path) -> None:
    write_logs(tmp_path / "logs", Job(4, 4, range(1, 2), machines=2, clock_errors_us=(0, 0)))
    result = run_cli("--log_dir", tmp_path / "logs" / "machine1", "--out", tmp_path / "out", "--json")
    document = orjson.loads(result.stdout)
    assert document["hosts"] == ["machine1"]
    assert "machine-alone" in {note["code"] for note in document["notes"]}


def test_the_launchers_files_say_which_rank_a_log_is_of(run_cli: Cli, tmp_path: Path) -> None:
    """machine1 is the first node, and only envlog.N says so; nothing else of the environment reaches an output."""
    job, logs = Job(4, 4, range(1, 2), machines=2, clock_errors_us=(0, 0)), tmp_path / "logs"
    blocks = write_logs(logs, job)
    (logs / "machine0").rename(logs / "other")
    (logs / "machine1").rename(logs / "machine0")
    (logs / "other").rename(logs / "machine1")
    for machine, node in enumerate((1, 0)):
        for worker in range(2):
            environment = {
                "AAA_TOKEN": "planted-secret", "PADDLE_GLOBAL_RANK": 2 * node + worker, "PADDLE_LOCAL_RANK": worker,
                "PADDLE_TRAINER_ID": 2 * node + worker, "PADDLE_GLOBAL_SIZE": 4,
            }  # fmt: skip
            text = "".join(f"{key}={value}\n" for key, value in environment.items())
            (logs / f"machine{machine}" / f"envlog.{worker}").write_text(text)
    out = tmp_path / "out"
    options = ["--multi_machine", "--format", "csv,perfetto,chrome", "--align", "none", "--json"]
    result = run_cli("--log_dir", logs, "--out", out, *options)
    assert result.returncode == 0, result.stderr
    assert table(out) == truth(job, blocks)
    written = b"".join(p.read_bytes() for p in out.iterdir())
    assert b"planted-secret" not in written + result.stdout.encode() + result.stderr.encode()


def test_dropped_records_are_counted_with_file_and_line(samples: Path, run_cli: Cli, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / "paddle" / "single", logs)
    lines = (logs / "workerlog.1").read_text().splitlines(keepends=True)
    broken = next(i for i, line in enumerate(lines) if "Profiler Info" in line)
    lines[broken] = lines[broken].replace("micro_batch_id = 0", "micro_batch_id = zero")
    (logs / "workerlog.1").write_text("".join(lines))
    result = run_cli("--log_dir", logs, "--out", tmp_path, "--format", "csv", "--json")
    note = next(n for n in orjson.loads(result.stdout)["notes"] if n["code"] == "records-malformed")
    assert note["count"] == 1
    assert note["where"] == f"{logs / 'workerlog.1'}:{broken + 1}"
    assert run_cli("--log_dir", logs, "--out", tmp_path, "--format", "csv", "--strict").returncode == 3
