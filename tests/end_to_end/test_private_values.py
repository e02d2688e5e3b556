"""Environment variables and command lines, which captures of every format hold, reach no output of any command."""

import gzip
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators import ascend, kineto, nsys, paddle, recorder, rocpd, torch_pftrace
from samples.generators.nsys_export import as_folder
from tests.conftest import Cli
from tests.faults.inputs import INPUTS
from tests.live.test_look import looks
from tests.support.databases import changing
from tests.support.rows import slow
from tests.support.torch_traces import one_block
from trace_export.agents.runs import Runs
from trace_export.agents.server import Answers
from trace_export.live.board import Board
from trace_export.sources.formats import FORMATS as ALL

SECRET = "hunter2-planted"
COMMAND = f"/home/{SECRET}/python train.py --token={SECRET} --password {SECRET}"
ENVIRONMENT = {"AWS_SECRET": SECRET, "MASTER_ADDR": f"{SECRET}.example", "SLURM_JOB_NAME": SECRET, "SLURM_JOB_ID": "7"}


def _nsys(folder: Path) -> None:
    chance = random.Random(1)
    nsys.record(folder, nsys.blocks_of(2, 4, 2, chance), 1, (0,), chance)
    with changing(folder / "node0.sqlite") as db:
        spelled = "\0".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        db.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'DeviceEnvironment'", [spelled])
        strings = [COMMAND, spelled, *COMMAND.split()]
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(strings, 900_000)))
        db.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT)")
        rows = [("PROCESS_0:COMMAND", COMMAND), ("PROCESS_0:ARGUMENT_1", f"--token={SECRET}"),
                ("PROCESS_0:WORKING_DIR", f"/home/{SECRET}"), ("PROCESS_0:USER_NAME", SECRET),
                ("PROCESS_0:ENVIRONMENT_VARIABLE", f"AWS_SECRET={SECRET}")]  # fmt: skip
        db.executemany("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", rows)
        db.execute("CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT)")
        db.execute("INSERT INTO PROCESSES VALUES (?, 4000, ?)", [(1 << 48) | (4000 << 24), COMMAND])
        db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT, globalPid INTEGER)")
        said = [
            f"Process was launched: {COMMAND}",
            f"Unknown variable AWS_SECRET={SECRET}",
            f"No such file '{SECRET}'",
            f"python failed --api-key {SECRET} -p {SECRET} here",
            f'ran "{SECRET}" x',
            f"see /{SECRET}/x",
        ]
        db.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 3, ?, NULL)", [(text,) for text in said])


def _kineto(folder: Path) -> None:
    kineto.write(folder)
    (folder / "truth.csv").unlink()
    for path in folder.iterdir():
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace |= {"env": ENVIRONMENT, "cmdline": COMMAND, "traceName": f"/home/{SECRET}/trace.json"}
        trace |= {f"PT_PROFILER_JOB_{name}": SECRET for name in ("NAME", "VERSION", "ATTEMPT_INDEX")}
        for what, value in (("process_name", COMMAND), ("process_labels", COMMAND), ("thread_name", COMMAND)):
            args = {"labels" if what == "process_labels" else "name": value}
            event = {"name": what, "ph": "M", "pid": 4001, "tid": 4001, "ts": 0, "args": args}
            trace["traceEvents"].append(event)
        path.write_bytes(gzip.compress(json.dumps(trace, indent=2).encode()))


def _rocpd(folder: Path) -> None:
    rocpd.write(folder, stages=2, microbatches=4, steps=2)
    (folder / "truth.csv").unlink()
    for path in folder.rglob("*.db"):
        with changing(path) as db:
            (table,) = db.execute("SELECT name FROM sqlite_master WHERE name GLOB 'rocpd_info_process_*'").fetchone()
            ((result,),) = db.execute(f"SELECT environment FROM {table}").fetchall()
            held = json.dumps(json.loads(result) | ENVIRONMENT)
            extra = json.dumps({"options": COMMAND})
            db.execute(f"UPDATE {table} SET environment = ?, command = ?, extdata = ?", [held, COMMAND, extra])


def _ascend(*, text: bool, framework: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        ascend.record(folder, ascend.Job(2, 4, 2, text=text, framework=framework))
        for capture in folder.iterdir():
            (info,) = capture.glob("profiler_info_*.json")
            info.write_text(json.dumps(json.loads(info.read_text()) | {"environment": ENVIRONMENT, "argv": COMMAND}))
            if (metadata := capture / "profiler_metadata.json").exists():
                held = json.loads(metadata.read_text()) | {"ENV_VARIABLES": ENVIRONMENT, "argv": COMMAND.split()}
                metadata.write_text(json.dumps(held))
            for database in capture.rglob("*.db"):
                with changing(database) as db:
                    rows = [("ENV_VARIABLES", json.dumps(ENVIRONMENT)), ("COMMAND", COMMAND)]
                    db.executemany("INSERT INTO META_DATA VALUES (?, ?)", rows)
                    db.execute("INSERT INTO STRING_IDS VALUES (9000000, ?)", [COMMAND])

    return write


def _paddle(folder: Path) -> None:
    paddle.write_logs(folder, paddle.Job(2, 4, range(1, 3)))
    for rank in range(2):
        log = folder / f"workerlog.{rank}"
        log.write_text(f"LAUNCH INFO {COMMAND}\nAWS_SECRET={SECRET}\n{log.read_text()}Traceback: {COMMAND}\n")
        held = ENVIRONMENT | {"PADDLE_GLOBAL_RANK": str(rank), "PADDLE_LOCAL_RANK": str(rank)}
        (folder / f"envlog.{rank}").write_text("".join(f"{name}={value}\n" for name, value in sorted(held.items())))


def _recorder(folder: Path) -> None:
    recorder.write(folder, stages=2, microbatches=4, steps=2, hosts=1, clock_errors_ns=(0,))
    (folder / "truth.csv").unlink(missing_ok=True)
    for path in folder.rglob("*.blocks"):
        first, rest = path.read_text().split("\n", 1)
        held = json.loads(first[1:]) | {"environment": ENVIRONMENT, "argv": COMMAND}
        path.write_text(f"#{json.dumps(held)}\n{rest}")


def _tables_of_nsys(folder: Path) -> None:
    _nsys(place := folder.with_name(f"{folder.name} exported"))
    as_folder(place / "node0.sqlite", folder / "node0", ".parquet")


def _perfetto_traces(folder: Path) -> None:
    """Of torch.profiler, with the command line in the descriptions of the process and its threads, and in a slice."""
    trace = one_block()
    trace.range(1_000, 9_000, "cudaGetDevice", cat="cpu_op")
    trace.events[-1]["args"] |= {"argv": COMMAND, "env": ENVIRONMENT}
    written = torch_pftrace.Writer(trace).written()
    for descriptor in [packet.track_descriptor for packet in written.packet if packet.HasField("track_descriptor")]:
        descriptor.name = COMMAND
        if descriptor.HasField("process"):
            descriptor.process.process_name = COMMAND
            descriptor.process.cmdline.extend(COMMAND.split())
            descriptor.process.process_labels.append(COMMAND)
        else:
            descriptor.thread.thread_name = COMMAND
    folder.mkdir(parents=True)
    (folder / "rank0.pftrace").write_bytes(written.SerializeToString())


def _beside_values(kind: str) -> Callable[[Path], None]:
    """The small input of a format that has no place for them: further columns and fields that somebody added."""
    held = {"environment": ENVIRONMENT, "argv": COMMAND}

    def grown(value: Any) -> Any:
        """Where fields are values and not further objects, which iterations are."""
        if isinstance(value, list):
            return [grown(each) for each in value]
        if not isinstance(value, dict):
            return value
        inner = any(isinstance(each, dict) for each in value.values())
        return {k: grown(v) for k, v in value.items()} | ({} if inner else held)

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        INPUTS[kind].make(folder)
        for path in folder.rglob("*.parquet"):
            more = [pl.lit(json.dumps(value)).alias(name) for name, value in held.items()]
            pl.read_parquet(path).with_columns(more).write_parquet(path)
        for path in folder.rglob("*.json"):
            path.write_text(json.dumps(grown(json.loads(path.read_text()))))
        for path in folder.rglob("profile_record_tmp_file_for_rank_*"):
            path.write_text(
                "".join(f"{json.dumps(json.loads(line) | held)}\n" for line in path.read_text().splitlines())
            )

    return write


OF_FEW_VALUES = ("paddle_dygraph", "span_table", "operation_table", "primus", "megascan")
FORMATS: dict[str, Callable[[Path], None]] = {
    "nsys": _nsys, "kineto": _kineto, "rocpd": _rocpd, "paddle": _paddle, "recorder": _recorder,
    "ascend database": _ascend(text=False, framework="pytorch"), "ascend text": _ascend(text=True, framework="pytorch"),
    "mindspore database": _ascend(text=False, framework="mindspore"),
    "mindspore text": _ascend(text=True, framework="mindspore"),
    "nsys tables": _tables_of_nsys, "kineto perfetto": _perfetto_traces,
    **{kind: _beside_values(kind) for kind in OF_FEW_VALUES},
}  # fmt: skip
DRAWN = [
    ["export", "--detail", "kernels", "--format", "chrome", "--json", "--verbose"],
    ["export", "--bubbles", "--format", "perfetto,svg,html"],
    ["export", "--format", "parquet", "--table", "blocks,messages,ranks,steps"],
    ["export", "--format", "csv", "--steps", "0-99"],
    ["inspect", "--json"],
    ["report", "--json"],
    ["report", "--format", "html", "--out", "{place}/why.html"],
    ["overview", "--out", "{place}/overview.html"],
    ["compare", "{other}", "--json"],
]
REFUSED = [
    ["export", "--devices", "77"],
    ["inspect", "--verbose", "--marker", "nothing of the kind=>F", "--infer", "off", "--host"],
]
"""What is asked of each format: what all can do, and what most refuse."""


OF_WATCH = ("nsys", "recorder")
"""A database and a log that grows: what a watch and an agent say is made of the same tables for all formats."""


def _written(folder: Path) -> Iterator[str]:
    """What each file in `folder` holds, unpacked."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".parquet":
            yield str(pl.read_parquet(path).to_dicts())
        yield _plain(path.read_bytes())


def _plain(content: bytes) -> str:
    return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8", "replace")


def _asked(capture: str, *, every: bool) -> list[list[str]]:
    """The first command of all formats; of the others one, the next format has the next one."""
    _, *others = asked = [*DRAWN, *REFUSED]
    return asked if every else [*DRAWN[:1], others[list(FORMATS).index(capture) % len(others)]]


def test_every_format_is_here() -> None:
    assert {name.partition(" ")[0] for name in FORMATS} == {row.kind for row in ALL}


@pytest.mark.parametrize("capture", FORMATS)
def test_no_output_holds_what_a_capture_holds_of_the_environment(
    tmp_path: Path, run_cli: Cli, capture: str, request: pytest.FixtureRequest
) -> None:
    FORMATS[capture](folder := tmp_path / "in")
    shutil.copytree(folder, other := tmp_path / "other")
    for number, (word, *options) in enumerate(_asked(capture, every=request.config.getoption("--slow"))):
        (place := tmp_path / f"out{number}").mkdir()
        given = [option.format(place=place, other=other) for option in options]
        given += ["--out", str(place / "chart")] if word == "export" else []
        done = run_cli(word, folder, *given)
        assert done.returncode == 0 or [word, *options] in REFUSED, (word, options, done.stderr)
        for text in (done.stdout, done.stderr, *_written(place)):
            at = text.find(SECRET)
            assert at < 0, (word, options, text[max(at - 200, 0) : at + 60])


@pytest.mark.parametrize("capture", [*OF_WATCH, *slow(capture for capture in FORMATS if capture not in OF_WATCH)])
def test_neither_a_watch_nor_an_agent_is_told_of_the_environment(tmp_path: Path, capture: str) -> None:
    FORMATS[capture](folder := tmp_path / "in")
    board = Board("run")
    for path in folder.rglob("*"):
        os.utime(path, (0, 0))  # nobody writes to it any more
    states = [board.put(look) for look in looks(folder, [])]
    said = [state.decode() for state in states]
    for name, resource in board.resources().items():
        queries = json.loads(states[-1])["charts"] if name == "/chart.svg" else [""]
        said += [_plain(resource.content(query)) for query in queries]
    answers = Answers(Runs([folder]))
    said += [str(answer("in")) for answer in (answers.inspect, answers.report, answers.slowdown, answers.critical_path)]
    said += [str(answers.query("in", f"select * from {name}", 1_000)) for name in ("blocks", "ranks", "hosts", "steps")]
    assert len(said[-4]) > 1_000
    for text in said:
        at = text.find(SECRET)
        assert at < 0, text[max(at - 200, 0) : at + 60]
