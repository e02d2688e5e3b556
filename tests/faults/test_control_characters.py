"""Control characters in the names of files, hosts, ranges and devices, in options and in files of options: escaped on
the terminal and in pictures, which obey them."""

import json
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from samples.generators import nsys as generate_nsys
from samples.generators import paddle as generate_paddle
from tests.support.command import command

EVIL = "e\x1b[31mv\x07\n\r\tl\u202e\x9b2J\u2028"
"""Colour, bell, line ends, text from right to left, an 8-bit erase of the screen, another line end."""
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
DRAWN = ("--format", "perfetto,chrome,svg,html,parquet,csv")


@pytest.fixture(scope="module")
def paddle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paddle") / EVIL
    generate_paddle.write(folder, stages=2, microbatches=2, steps=2, machines=2, clock_errors_us=(0, 900))
    return folder


@pytest.fixture(scope="module")
def nsys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the characters in all texts but the names of functions."""
    folder = tmp_path_factory.mktemp("nsys")
    generate_nsys.write(folder, stages=2, microbatches=2, steps=1)
    for path in folder.glob("*.sqlite"):
        with closing(sqlite3.connect(path)) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for _, column, kind, *_ in db.execute(f'PRAGMA table_info("{table}")').fetchall():
                    if kind.upper().startswith("TEXT") and table not in ("NVTX_EVENTS", "StringIds"):
                        db.execute(f'UPDATE "{table}" SET "{column}" = "{column}" || ?', [EVIL])
            db.execute("UPDATE StringIds SET value = value || ? WHERE value LIKE '%kernel%'", [EVIL])
            db.execute("UPDATE NVTX_EVENTS SET text = text || ? WHERE rowid % 9 = 0", [EVIL])
            db.commit()
    return folder


@pytest.fixture(scope="module")
def tables(paddle: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Span tables with the characters in one column each, and in the name of another."""
    folder = tmp_path_factory.mktemp("tables")
    assert command("export", paddle, "--out", folder, "--format", "parquet").returncode == 0
    frame = pl.read_parquet(folder / "pipeline_profile.parquet")
    paths = []
    for column in ("host", "origin", "kind"):
        frame.with_columns(pl.col(column) + EVIL).write_parquet(folder / f"{column}.parquet")
        paths.append(folder / f"{column}.parquet")
    frame.with_columns(pl.col("host") + EVIL).write_csv(folder / "host.csv")
    paths.append(folder / "host.csv")
    frame.with_columns(pl.lit(1).alias(EVIL)).write_parquet(folder / "other.parquet")
    frame.rename({"host": EVIL}).write_parquet(folder / "renamed.parquet")
    return [*paths, folder / "other.parquet", folder / "renamed.parquet"]


def check(out: Path, *arguments: object) -> None:
    """Runs the command; what it prints and draws is free of the characters."""
    ended = command(*arguments)
    printed = ended.stdout + ended.stderr
    assert all(line.isprintable() for line in printed.split("\n")), printed
    for file in (*out.glob("*.svg"), *out.glob("*.html")):
        assert not OBEYED.search(file.read_text()), file.name
    for file in out.glob("*.json"):
        json.loads(file.read_bytes())


def commands(source: Path, out: Path) -> Sequence[Sequence[object]]:
    return (
        ("export", source, "--out", out, "--detail", "kernels", "--jobs", 1, *DRAWN), ("report", source),
        ("report", source, "--format", "html", "--out", out), ("inspect", source), ("compare", source),
    )  # fmt: skip


def test_names_of_folders_and_hosts(paddle: Path, tmp_path: Path) -> None:
    for arguments in commands(paddle, tmp_path / "out"):
        check(tmp_path / "out", *arguments)
    check(tmp_path, "export", paddle, "--out", tmp_path / EVIL)


def test_names_of_hosts_processes_ranges_and_kernels(nsys: Path, tmp_path: Path) -> None:
    for arguments in commands(nsys, tmp_path / "out"):
        check(tmp_path / "out", *arguments)


def test_columns_of_tables(tables: list[Path], tmp_path: Path) -> None:
    for number, table in enumerate(tables):
        out = tmp_path / str(number)
        if table.suffix == ".parquet":  # what is drawn of the same in CSV is the same
            check(out, "export", table, "--out", out, *DRAWN)
        check(out, "report", table)


@pytest.mark.parametrize(
    "option",
    [
        "--offset", "--devices", "--ranks", "--time", "--align", "--format", "--tracks", "--marker", "--pp",
        "--max-clock-error", "--color-by",
    ],
)  # fmt: skip
def test_values_of_options(option: str, paddle: Path, tmp_path: Path) -> None:
    for value in (EVIL, f"{EVIL}=3ms", f"({EVIL}=>F", f"x=>{EVIL}"):
        check(tmp_path, "export", paddle, option, value, "--out", tmp_path)


def test_other_arguments(paddle: Path, tmp_path: Path) -> None:
    for arguments in (
        [EVIL], ["export", tmp_path / EVIL], ["docs", EVIL], ["open", tmp_path / f"{EVIL}.json", "--no-browser"],
        ["simulate", "--schedule", EVIL, "--stages", 2, "--microbatches", 2], ["run", "--", EVIL],
        ["simulate", "--schedule", "1f1b", "--stages", 2, "--microbatches", 2, "--times", EVIL],
        ["export", "--scheduler", "tcp://127.0.0.1:1", "--at", EVIL], ["nsys", "--log_dir", paddle],
    ):  # fmt: skip
        check(tmp_path, *arguments)


@pytest.mark.parametrize(
    "content",
    [json.dumps({"t0_ns": 0, "hosts": {EVIL: {"offset_ns": EVIL}}}), json.dumps({"t0_ns": 0, "hosts": {EVIL: {}}}),
     "{" + EVIL, f"x = {EVIL}", f'[[marker]]\npattern = "("\nkind = {json.dumps(EVIL)}'],
)  # fmt: skip
def test_files_of_options(content: str, paddle: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{EVIL}.toml"
    file.write_text(content)
    for option in ("--align", "--marker"):
        check(tmp_path, "export", paddle, option, file, "--out", tmp_path)
