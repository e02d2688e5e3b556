"""What the commands make of the samples, as text that a change of behaviour changes and another wording does not.

A golden run is a few commands in a folder with copies of samples. Its text has the exit code of each, the codes of its
notes, the numbers that it prints, and each file that it writes, read as tables: per column sum, least and greatest
value and a checksum. `python -m tests.support.golden_runs [NAME …]` writes the texts anew and prints how they differ.
"""

import difflib
import gzip
import re
import shutil
import sqlite3
import struct
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import polars as pl

from tests.conftest import ROOT
from tests.support import schemas
from tests.support.command import command
from tests.support.trace_processor import TraceProcessor
from tests.support.traces import read_slices
from trace_export.cli.app import aliases

FOLDER = ROOT / "tests" / "golden" / "runs"
PROSE = 40
"""Texts of this many characters are sentences; only their numbers count."""
NUMBER = re.compile(
    r"(?<![\w./:-])[-+±]?\d[\d.,:]*(?:e[-+]?\d+)?(?: ?(?:%|ms|s|µs|ns|points|×|GB|MB|kB)(?!\w))?(?![\w/])"
)
NOTE = re.compile(r"^(warning|note|detail): (.*) \[([a-z0-9-]+)\]$", re.MULTILINE)
SIZE = re.compile(r" \([\d.]+ (?:B|kB|MB|GB)\)")


@dataclass(frozen=True)
class GoldenRun:
    """`commands` in a folder with copies of `samples` (folder → sample) and with `files` (path → text)."""

    samples: dict[str, str]
    commands: list[str]
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """Symbolic links: path → where it leads."""


def work_table(length: float) -> str:
    """A table of another tool: 4 steps of two stages, whose blocks take `length` of the millisecond they have."""
    order = ((0, "F", 0), (1, "F", 1), (1, "B", 2), (0, "B", 3))
    rows = [
        f"{rank},{kind},{4 * step + start},{4 * step + start + length + step / 1000},0,{step}"
        for step in range(4)
        for rank, kind, start in order
    ]
    return "\n".join(["worker,what,at,until,batch,iteration", *rows, ""])


COLUMNS = "--columns rank=worker,kind=what,start=at:ms,end=until:ms,microbatch=batch,step=iteration"
NOT_OURS = "not ours"
EVERYTHING = "--bubbles --model --critical-path"
FIGURE = (
    "--width 18cm --theme grayscale --title Figure --legend below --figure-steps 1 --range 10ms-60ms "
    "--first-microbatch 1"
)
RUNS: dict[str, GoldenRun] = {
    "every_track": GoldenRun(
        {"logs": "paddle/single"},
        [f"export logs --format perfetto,chrome,csv --color-by microbatch {EVERYTHING} --out out --verbose"],
    ),
    "every_table": GoldenRun(
        {"logs": "nsys/two_hosts"},
        ["export logs --format parquet --table blocks,messages,ranks,steps,critical_path --out out --jobs 1"],
    ),
    "part_of_a_run": GoldenRun(
        {"logs": "paddle/single"},
        [
            "export logs --steps 3-4 --stages 1-2 --format csv,perfetto --out steps",
            "export --log_dir logs --ranks 0,2-3 --format csv --out ranks --json",
            "export logs --devices 1 --format csv --out devices --quiet",
            "export logs --time 0.1s-400ms --format csv --out time",
            "report logs --steps 3 --json",
            "report --log_dir logs --stages 1-2 --ranks 1-2 --devices 1-2 --time 0.1s-400ms",
        ],
    ),
    "one_format_and_run": GoldenRun(
        {"logs": "paddle/single", "logs/more": "nsys/two_hosts", "other": "paddle/single"},
        [
            "export logs --source paddle --run 1 --format csv --out out",
            "report logs --source paddle --run all",
            "overview logs --source nsys --run latest --pp 2 --out overview",
            "inspect logs --source paddle --run 1",
            "compare logs other --source paddle --run 1 --run-a all --run-b latest",
            "export other --source nsys",
            "export other --time 30ms-90ms --format svg,csv --out time",
        ],
    ),
    "several_files": GoldenRun(
        {"logs": "paddle/single"},
        ["export logs --max-slices 80 --gzip --out out"],
    ),
    "two_machines": GoldenRun(
        {"logs": "paddle/two_machines"},
        [
            "paddle logs --multi_machine --out auto --format csv,perfetto",
            "export logs --align wall --format csv --out wall",
            "export logs --align none --offset machine1=-3.2ms --offset machine0=5us --format csv --out moved",
            "export logs --align strict --max-clock-error 1us --format csv --out strict",
            "export logs --align auto/clock_alignment.json --format csv --out again",
            "report logs --multi_machine --align none --offset machine1=-3.2ms",
            "report logs --align strict --max-clock-error 1us",
        ],
    ),
    "nsys": GoldenRun(
        {"logs": "nsys/two_hosts"},
        [
            "nsys logs --detail kernels --tracks rank --out out",
            "report logs --detail kernels",
            "inspect logs",
        ],
    ),
    "sizes_of_the_run": GoldenRun(
        {"logs": "nsys/two_hosts"},
        [
            "export logs --pp 2 --dp 2 --replica 1 --format csv --out replica",
            "export logs --pp 2 --tp 2 --format csv --out tensor",
            "export logs --pp 2 --cp 2 --tracks rank --format csv,chrome --out context",
            "report logs --pp 2 --tp 1 --dp 2 --cp 1 --replica 0",
            "overview logs --pp 2 --dp 2 --tp 1 --cp 1 --format parquet --out overview",
            "inspect --log_dir logs --pp 2 --tp 1 --dp 1 --cp 2",
        ],
    ),
    "names_of_ranges": GoldenRun(
        {"logs": "nsys/two_hosts", "more": "nsys/two_hosts"},
        [
            r"export logs --host --format csv --out host",
            r"export logs --marker F(?P<microbatch>\d+).*=>B --marker Optimizer.*=>OTHER --format csv --out rules",
            r"report logs --host --marker Optimizer.*=>OTHER",
            r"overview logs --host --marker Optimizer.*=>OTHER --out overview",
            r"inspect logs --host --marker Optimizer.*=>OTHER",
            r"compare logs more --host --marker Optimizer.*=>OTHER",
        ],
    ),
    "unmarked": GoldenRun(
        {"logs": "unmarked", "more": "unmarked"},
        [
            "export logs --format csv,perfetto --out auto",
            "export logs --infer only --format csv --out only",
            "export logs --infer off --format csv --out off",
            "report logs --infer only",
            "overview logs --infer only --out overview",
            "inspect logs --infer only --full",
            "compare logs more --infer only",
        ],
    ),
    "ascend": GoldenRun(
        {"logs": "ascend"},
        [
            "ascend logs --detail comm --out comm",
            "export logs --detail kernels --tracks rank --out kernels",
            "report logs",
        ],
    ),
    "step_task_info": GoldenRun(
        {"logs": "ascend", "own": "ascend"},
        [
            "export logs --step-task-info --format csv --out out",
            "export own --step-task-info --in-place --format csv --out out/own",
        ],
    ),
    "mindspore": GoldenRun(
        {"logs": "mindspore"}, ["mindspore logs --detail comm --out out", "report logs", "inspect logs"]
    ),
    "kineto": GoldenRun(
        {"logs": "kineto/two_hosts"},
        ["kineto logs --detail kernels --out out", "report logs"],
    ),
    "rocpd": GoldenRun({"logs": "rocpd/two_hosts"}, ["rocpd logs --detail kernels --out out", "report logs"]),
    "recorder": GoldenRun(
        {"logs": "recorder/two_hosts"}, ["recorder logs --out out", "report logs", "inspect logs --full"]
    ),
    "tables_of_others": GoldenRun(
        {"logs": "paddle/single"},
        [
            "export logs --format csv --out spans.csv",
            "spans spans.csv --format csv,perfetto --out again",
            "report spans.csv",
            f"export work.csv {COLUMNS} --format csv --out work",
            f"inspect work.csv {COLUMNS}",
            f"report work.csv {COLUMNS}",
            f"overview work.csv {COLUMNS} --json --out overview",
            f"compare work.csv spans.csv {COLUMNS}",
        ],
        files={"work.csv": work_table(0.8)},
    ),
    "pictures": GoldenRun(
        {"logs": "kineto/two_hosts"},
        [
            "export logs --format svg,png,pdf,html --out plain",
            f"export logs --format svg,html --out styled {FIGURE} --no-letters",
            "export logs --format svg --out bare --no-legend --letters",
        ],
    ),
    "report": GoldenRun(
        {"logs": "paddle/single"},
        [
            "report logs --verbose --strict --debug --jobs 1",
            "report logs --full --train-log train.log --layers 24",
            "report logs --format markdown",
            "report logs --json",
            "report logs --format html --out page",
            "report logs --format svg --out map --quiet",
            "report logs --layers 25",
        ],
        files={
            "train.log": "".join(f"steps: {n} loss: 2.3 iter time (s): 0.3{n % 3} samples/sec: 5\n" for n in range(9))
        },
    ),
    "overview": GoldenRun(
        {"logs": "paddle/two_machines"},
        [
            "overview logs --format html,parquet --out out --jobs 1 --debug --verbose",
            "overview --log_dir logs --ranks 0-3 --steps 2-3 --align wall --strict --json --quiet --out part",
            "overview logs --multi_machine --replica 0 --stages 1-2 --time 0.1s-400ms --json --out some",
            "overview logs --devices 0 --json --out devices",
        ],
    ),
    "compare": GoldenRun(
        {"a": "paddle/single", "b": "unmarked", "c": "paddle/single"},
        [
            "compare a b --verbose --strict --debug --jobs 1",
            "compare a a --steps-a 2 --steps-b 3-4 --full",
            "compare a b --out both --format chrome,perfetto,svg,csv --gzip",
            "compare a c --steps 2-3 --stages 1-2 --ranks 1-2 --devices 0-2 --time 0.1s-400ms --align wall",
            "compare a b --pp 2 --tp 2 --dp 1 --cp 1 --json",
        ],
    ),
    "gate": GoldenRun(
        {"a": "paddle/single", "b": "unmarked", "machines": "paddle/two_machines"},
        [
            "compare a --save --baseline base.json",
            "compare machines --multi_machine --baseline base.json --fail-above 5%",
            "compare b a --fail-above 5% --on step --json --quiet",
            f"compare short.csv long.csv {COLUMNS} --fail-above 5% --on stage:1 --json",
        ],
        files={"short.csv": work_table(0.5), "long.csv": work_table(0.8)},
    ),
    "inspect": GoldenRun(
        {"logs": "paddle/two_machines"},
        [
            "inspect logs",
            "inspect logs --ranks 0,2 --verbose --json",
            "inspect logs --jobs 1 --debug --offset machine1=+1ms",
        ],
    ),
    "simulate": GoldenRun(
        {},
        [
            "simulate --schedule zb-h1 --stages 4 --microbatches 8 --format csv,perfetto --bubbles --out a --gzip",
            "simulate --schedule interleaved --stages 4 --micro-batches 8 --chunks 3 --json --out b",
            "simulate --schedule 1f1b --stages 2 --micro-batches 4 --times F=9ms,B=20ms --comm 1ms --overlap 0.9",
            f"simulate --schedule zb-v --stages 2 --micro-batches 4 {FIGURE} --no-letters --format svg --out d --quiet",
            "simulate --schedule gpipe --stages 2 --micro-batches 3 --letters --no-legend --format svg --out e --debug",
            "simulate --schedule 1f1b --stages 2 --micro-batches 4 --time 20ms-60ms --format svg,csv --out f",
        ],
    ),
    "links": GoldenRun(
        {"logs": "paddle/single", "elsewhere": "paddle/single"},
        [
            "export logs --steps 3 --format csv --out one",
            "export linked --format csv --out without",
            "export linked --follow-links --format csv --out with",
            "report linked --follow-links --steps 3",
            "overview linked --follow-links --steps 3 --out overview",
            "inspect linked --follow-links",
            "compare linked logs --follow-links",
        ],
        links={"linked/more": "elsewhere"},
    ),
    "files_of_others": GoldenRun(
        {"logs": "recorder/two_hosts", "more": "recorder/two_hosts"},
        [
            "export logs --out out",
            "export logs --out out --force --strict --debug",
            "report logs --format html --out out --force",
            "overview logs --out out",
            "overview logs --out out --force",
            "compare logs more --out out/both.svg --force",
            "simulate --schedule 1f1b --stages 2 --micro-batches 2 --out out/other.json --force",
        ],
        files={
            f"out/{name}": NOT_OURS
            for name in (
                "pipeline_profile.json",
                "pipeline_report.html",
                "pipeline_overview.html",
                "both.svg",
                "other.json",
            )
        },
    ),
    "wrong_usage": GoldenRun(
        {"logs": "paddle/single"},
        [
            "export logs --steps 9",
            "export logs --steps one",
            "export logs --format gif",
            "export logs --no-such-option",
            "export nowhere",
            "export empty",
            "reprot logs",
            "compare logs",
            "simulate --schedule none --stages 2 --micro-batches 2",
        ],
        files={"empty/readme.txt": "nothing here"},
    ),
}
ELSEWHERE = {"--scheduler", "--at", "--help-all"}
"""Options that need a cluster, and help: tests/workers and tests/cli."""
COMMANDS = ("export", "report", "overview", "compare", "inspect", "simulate")
"""Commands whose every option is in a golden run. The others serve, follow or start something."""


def text(name: str) -> str:
    """Runs the commands of a golden run; returns its text."""
    run = RUNS[name]
    with TemporaryDirectory() as made:
        folder = Path(made)
        for place, sample in run.samples.items():
            shutil.copytree(ROOT / "samples" / sample, folder / place)
        for place, content in run.files.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_text(content)
        for place, target in run.links.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).symlink_to(folder / target)
        lines = [line for each in run.commands for line in _command(each, folder)]
    return "\n".join(_shorter(lines))


def _command(asked: str, folder: Path) -> Iterator[str]:
    before = _checksums(folder)
    ended = command(*asked.split(), cwd=folder)
    yield f"$ trace-export {asked}"
    yield f"exit {ended.returncode}"
    yield from _notes(ended.stderr)
    yield from _printed(ended.stdout.replace(str(folder), "."))
    after = _checksums(folder)
    for name in sorted(after):
        if after[name] != before.get(name):
            yield from _file(folder / name, name)
    yield ""


def _checksums(folder: Path) -> dict[str, int]:
    """What lies in a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): zlib.crc32(path.read_bytes()) for path in files}


def _notes(printed: str) -> Iterator[str]:
    for level, sentence, code in NOTE.findall(printed):
        yield f"{level} {code}: {_numbers(sentence)}".rstrip(": ")
    if named := sorted(set(re.findall(r"(?<!\w)--[a-z]+(?:[_-][a-z]+)*", NOTE.sub("", printed)))):
        yield f"names {' '.join(named)}"


def _printed(printed: str) -> Iterator[str]:
    if printed.startswith("{"):
        document = orjson.loads(printed)
        assert schemas.errors(document) == []
        yield from _document("stdout", document)
        return
    for paragraph in re.split(r"\n\s*\n", printed):
        if numbers := _numbers(SIZE.sub("", paragraph)):
            yield f"prints {numbers}"


def _numbers(sentences: str) -> str:
    """The numbers in a text, with their units, in the order of their size: another wording has the same."""
    result = {" ".join(number.rstrip(".,:").split()) for number in NUMBER.findall(sentences)}
    return "  ".join(sorted(result, key=lambda number: (len(re.sub(r"\D.*", "", number)), number)))


def _file(path: Path, name: str) -> Iterator[str]:
    """What a file holds, by its kind."""
    kind = name.removesuffix(".gz").rpartition(".")[2]
    if path.read_bytes() == NOT_OURS.encode():
        yield f"{name}: as before"
    elif kind == "csv":
        yield from _table(name, pl.read_csv(path, infer_schema_length=None))
    elif kind == "parquet":
        yield from _table(name, pl.read_parquet(path))
    elif kind == "db":
        yield from _database(path)
    elif kind in ("html", "svg"):
        tags = Counter(re.findall(r"<([a-z]\w*)", path.read_text("utf-8")))
        yield f"{name}: " + ", ".join(f"{count} {tag}" for tag, count in sorted(tags.items()))
    elif kind == "png":
        width, height = struct.unpack_from(">II", path.read_bytes(), 16)
        yield f"{name}: {width} × {height}"
    elif kind in ("zip", "tar"):
        yield f"{name}: {', '.join(_members(path))}"
    elif kind == "pftrace" or (kind == "json" and b"traceEvents" in _start(path)):
        yield from _trace(path, name)
    elif kind == "json":
        yield from _document(name, orjson.loads(path.read_bytes()))
    else:
        yield name


def _start(path: Path) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        return file.read(1000)


def _members(path: Path) -> list[str]:
    if zipfile.is_zipfile(path):
        return sorted(zipfile.ZipFile(path).namelist())
    with tarfile.open(path) as archive:
        return sorted(archive.getnames())


def _database(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("select count(*) from sqlite_master where type = 'table'").fetchone()[0]
        rows = database.execute("select * from StepTaskInfo").fetchall()
    yield f"{path.name}: {tables} tables"
    table = pl.DataFrame(rows, ["name", "startNs", "endNs", "type"], orient="row")
    yield from _table(f"{path.name} StepTaskInfo", table)


def _trace(path: Path, name: str) -> Iterator[str]:
    """The slices with their arguments as columns, then arrows and counters. Ids of tracks are of no interest."""
    with TraceProcessor(path) as processor:
        slices = pl.DataFrame([_flat(s) for s in read_slices(processor)], infer_schema_length=None)
        yield from _table(f"{name} slices", slices.sort("ts", "track_name", "dur", "name", maintain_order=True))
        yield f"{name} arrows: {processor.query('select count(*) n from flow').item()}"
        counters = """select t.name, count(*) samples, sum(c.value) total
            from counter c join track t on c.track_id = t.id group by 1 order by 1"""
        for counter, samples, total in processor.query(counters).iter_rows():
            yield f"{name} counter {counter}: {samples} samples, sum {total:.6g}"
        for problem in processor.problems().iter_rows():
            yield f"{name} PROBLEM {problem}"


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    arguments = {f"args.{key}": value for key, value in row["args"].items()}
    return {key: row[key] for key in ("ts", "dur", "name", "category", "track_name", "depth")} | arguments


def _document(name: str, document: dict[str, Any]) -> Iterator[str]:
    """Values by their path; lists of objects as tables."""
    for key, value in document.items():
        path = f"{name} {key}" if name in ("stdout",) or name.endswith(".json") else f"{name}.{key}"
        if isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values()):
            rows = [{"": name, **each} for name, each in value.items()]
            yield from _table(path, pl.DataFrame([_cells(row) for row in rows], infer_schema_length=None))
        elif isinstance(value, dict):
            yield from _document(path, value)
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            yield from _table(path, pl.DataFrame([_cells(each) for each in value], infer_schema_length=None))
        elif isinstance(value, list):
            yield f"{path}: {len(value)} {_fact(orjson.dumps(value).decode())}"
        else:
            yield f"{path}: {_fact(value)}"


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: orjson.dumps(value).decode() if isinstance(value, dict | list) else value for key, value in row.items()
    }


def _fact(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    words = str(value)
    return _numbers(words) if len(words) > PROSE or ". " in words else words


def _table(name: str, table: pl.DataFrame) -> Iterator[str]:
    """A line for the table and one for each of its columns."""
    yield f"{name}: {len(table)} rows"
    for column in table.get_columns():
        missing = f", {column.null_count()} missing" if column.null_count() else ""
        yield f"  {column.name}: {_column(column.drop_nulls())}{missing}"


def _shorter(lines: list[str]) -> Iterator[str]:
    """The lines; of a table that is mostly like an earlier one, only the columns that differ."""
    tables: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        end = next((i for i in range(at + 1, len(lines)) if not lines[i].startswith("  ")), len(lines))
        title, columns = lines[at], lines[at + 1 : end]
        at = end
        like = max(tables, key=lambda other: len({*tables[other]} & {*columns}), default="")
        same = {*tables.get(like, [])} & {*columns}
        if len(same) < max(len(columns) / 2, 1):
            yield from [title, *columns]
            if columns:
                tables[title.rpartition(":")[0]] = columns
            continue
        names = {column.partition(":")[0] for column in columns}
        gone = [name for name in (column.partition(":")[0] for column in tables[like]) if name not in names]
        yield f"{title}, as {like}" + (" but for" if gone or len(same) < len(columns) else "")
        yield from [column for column in columns if column not in same]
        yield from [f"{name}: no such column" for name in gone]


def _column(column: pl.Series) -> str:
    kind = column.dtype
    if kind == pl.Boolean:
        return f"{column.sum()} of {len(column)}"
    if kind.is_integer():
        numbers = column.cast(pl.Int128)
        return f"{numbers.sum()} sum, {numbers.min()} to {numbers.max()}, {_checksum(numbers.to_list())}"
    if kind.is_float():
        total, least, greatest = (f"{value or 0:.6g}" for value in (column.sum(), column.min(), column.max()))
        return f"{total} sum, {least} to {greatest}"
    texts = [str(value) for value in column]
    counts = Counter(texts)
    if any(len(value) > PROSE for value in texts):
        return f"sentences, {_numbers(' '.join(texts))}".rstrip(", ")
    if len(counts) <= 8:
        return ", ".join(f"{count} {value}" for value, count in sorted(counts.items()))
    return f"{len(counts)} values from {min(counts)} to {max(counts)}, {_checksum(texts)}"


def _checksum(values: list[Any]) -> str:
    return f"{zlib.crc32(orjson.dumps(values)):08x}"


def differences(name: str, now: str) -> list[str]:
    """The lines in which the golden text and `now` differ, each change below the command that it belongs to."""
    path = FOLDER / f"{name}.txt"
    before = path.read_text("utf-8") if path.exists() else ""
    result, title = [], ""
    for line in difflib.unified_diff(before.splitlines(), now.splitlines(), lineterm="", n=10**6):
        if line[1:].startswith("$ "):
            title = line[1:]
        if line[0] in "+-" and line[:3] not in ("+++", "---"):
            result += [title] if title not in result else []
            result.append(line)
    return result


def options() -> dict[str, set[str]]:
    """The options of each command that the golden runs give it."""
    given: dict[str, set[str]] = {}
    for run in RUNS.values():
        for line in run.commands:
            word, *rest = line.split()
            name = "export" if word in aliases() else word
            given.setdefault(name, set()).update(part for part in rest if part.startswith("--"))
    return given


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in sys.argv[1:] or RUNS:
        now = text(each)
        if changed := differences(each, now):
            print(f"{each}:", *changed, "", sep="\n")
        (FOLDER / f"{each}.txt").write_text(now, encoding="utf-8")
