"""Since 2025.6 nsys promises no order of the rows in its exports: whatever the order, the same chart comes out."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trace_export as te
from samples.generators.nsys_export import Export
from tests.conftest import UNTIMED
from tests.support.databases import changing
from tests.support.one_source import read
from trace_export.sources.source import ReadOptions, Source

A, B = 700, 710


def shuffled(path: Path, chance: random.Random) -> None:
    """The rows of every table of the database in another order."""
    with changing(path) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            rows = db.execute(f"SELECT * FROM {table}").fetchall()
            chance.shuffle(rows)
            db.execute(f"DELETE FROM {table}")
            if rows:
                db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def drawn(folder: Path, out: Path) -> bytes:
    paths = te.load(folder, detail="kernels", jobs=1).align().write(out, "chrome", force=True)
    return b"".join(path.read_bytes() for path in paths)


@settings(max_examples=3, suppress_health_check=[*UNTIMED, HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30))
def test_rows_of_equal_times_do_not_matter_either(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ranges and tasks of equal start and end, an id that occurs twice, a process with kernels on two GPUs."""
    export = Export(epoch_ns=1_000)
    for process in (A, B):
        for text in ("F0.0.0", "B0.0.0", "W0.0.0"):
            export.range(process, 100, 200, text)
        export.range(process, 100, 200, "F1.0.0", thread=process + 1)
        export.range(process, 210, None, "F2.0.0")
        export.range(process, 210, None, "B2.0.0")
        for device, name in ((3 - process % 2, "ncclDevKernel_SendRecv"), (1, "add"), (1, "copy")):
            call = export.call(process, 110)
            export.kernel(process, 300, 400, call, name=name, device=device, stream=device)
        export.range(process, 150, 160, "F3.0.0")
        call = export.call(process, 155)
        export.calls[process] -= 1
        assert export.call(process, 120) == call  # once inside F3.0.0 and once outside
        export.kernel(process, 500, 600, call, device=1)
    folder = tmp_path_factory.mktemp("order")
    (folder / "in").mkdir()
    path = export.write(folder / "in" / "x.sqlite")
    before = read(Source("nsys", path, "here"), ReadOptions()), drawn(folder / "in", folder / "out")
    shuffled(path, random.Random(seed))
    after = read(Source("nsys", path, "here"), ReadOptions()), drawn(folder / "in", folder / "out")
    assert before[1] == after[1]
    assert before[0].notes == after[0].notes
    for table in ("ranks", "spans", "p2p", "collectives"):
        assert getattr(before[0], table).equals(getattr(after[0], table)), table
