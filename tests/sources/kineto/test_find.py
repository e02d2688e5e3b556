"""Which files are traces, and what their names say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from samples.generators.kineto_trace import Trace
from tests.support.torch_traces import notes, one_block, times
from trace_export.sources.find import find
from trace_export.sources.kineto.reader import read
from trace_export.sources.source import ReadOptions

ZSTANDARD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0_trace.json", 0), ("trace_rank_3.json", 3), ("rank-12.json.gz", 12), ("Rank7.json", 7),
        ("dp0_pp1_tp0_rank5.json", 5), ("tp_rank_1_rank_9.json", 9),
        ("pp_rank_3.json", None), ("tp-rank-3.json", None), ("local_rank3.json", None), ("host_12.json", None),
    ],
)  # fmt: skip
def test_ranks_in_names(tmp_path: Path, name: str, rank: int | None) -> None:
    one_block(Trace(rank=None)).write(tmp_path / name)
    (source,) = find(tmp_path).sources
    assert source.rank == rank


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", ["rank{}_trace.json", "node0_{}.17600000000000000{}.pt.trace.json.gz"])
def test_of_folders_of_windows_the_latest_counts(tmp_path: Path, recorded: bool, name: str) -> None:
    """As torchtitan writes them; a rank that stopped early has its last window."""
    for iteration, ranks in ((5, 3), (10, 2), (100, 2)):
        for rank in range(ranks):
            trace = one_block(Trace(rank=rank if recorded else None, host=None))
            trace.write(tmp_path / f"iteration_{iteration}" / name.format(rank, 10 + iteration))
    found = find(tmp_path)
    assert [s.path.parent.name for s in found.sources] == ["iteration_5", "iteration_100", "iteration_100"]
    assert {s.host for s in found.sources} == {"machine0" if name.startswith("rank") else "node0"}
    assert {n.code for n in found.notes} == {"window-superseded"}
    assert sum(n.count for n in found.notes) == 4


def test_zstandard_is_read_where_a_library_is(tmp_path: Path) -> None:
    zstd = pytest.importorskip(ZSTANDARD)
    content = one_block().text().encode()
    for name in ("a.json.zst", "b.pt.trace.json.zst"):
        (tmp_path / name).write_bytes(zstd.compress(content))
    (tmp_path / "c.json.zst").write_bytes(zstd.compress(b"{}"))
    found = find(tmp_path)
    assert [Path(u.path).name for u in found.unrecognised] == ["c.json.zst"]
    assert len(found.sources) == 2
    for source in found.sources:
        assert times(read(source, ReadOptions())) == [("F0.0.0", 20_000, 30_007)]


def test_damaged_zstandard_is_read_up_to_the_damage(tmp_path: Path) -> None:
    zstd = pytest.importorskip(ZSTANDARD)
    trace = one_block()
    for i in range(20_000):
        trace.kernel(10**6 + i * i, 10**6 + i * i + i, 5)
    packed = zstd.compress(trace.text().encode())
    (tmp_path / "rank0.json.zst").write_bytes(packed[: len(packed) * 2 // 3])
    (source,) = find(tmp_path).sources
    profile = read(source, ReadOptions())
    assert times(profile) == [("F0.0.0", 20_000, 30_007)]
    assert "trace-truncated" in notes(profile)
