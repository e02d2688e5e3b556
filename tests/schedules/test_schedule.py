"""Orders of blocks: against golden files, and against the rules that every order has to keep."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from trace_export.errors import UsageError
from trace_export.schedules.catalogue import TITLES, canonical, readable
from trace_export.schedules.schedule import OPS, Schedule, schedule, virtual_stage
from trace_export.schedules.step_graph import CircleError, StepGraph

GOLDEN_NAMES = {
    "fthenb": ("fthenb", None), "1f1b": ("1f1b", None), "eager1f1b": ("Eager1F1B", None), "vpp2": ("VPP", 2),
    "vpp4": ("VPP", 4), "vpp2_paddle": ("interleaved-paddle", 2), "zb_h1": ("zb_h1", None), "zb_h2": ("ZBH2", None),
    "zb1p_v2": ("interleaved-zb1p", 2), "zbh1_paddle": ("zbh1_paddle", None), "zbv": ("zbv", None),
    "dualpipev": ("dualpipev", None), "dualpipe": ("dualpipe", None),
}  # fmt: skip


def planned(path: Path) -> Schedule:
    name, p, m = re.fullmatch(r"(.+)_p(\d+)_m(\d+)", path.stem).groups()
    alias, chunks = GOLDEN_NAMES[name]
    return schedule(alias, int(p), int(m), chunks)


def test_golden_orders_byte_for_byte(golden: Path) -> None:
    files = sorted((golden / "orders").glob("*.csv"))
    assert files
    for path in files:
        assert planned(path).text() == path.read_text(), path.stem


def test_activations_in_flight(golden: Path) -> None:
    """The peak of live chunks on every rank of the computed cases."""
    cases = json.loads((golden / "expected.json").read_text())
    for case in cases:
        expected = [rank["peak_live_chunks"] for rank in case["ranks"]]
        assert planned(golden / case["orders"]).in_flight()["chunks"].to_list() == expected, case["orders"]


def test_activations_in_flight_by_formula() -> None:
    """1F1B p - r; ZB-H1 p; ZB-H2 2p - 1; GPipe m."""
    assert schedule("1f1b", 4, 8).in_flight()["chunks"].to_list() == [4, 3, 2, 1]
    assert schedule("zb-h1", 4, 8).in_flight()["chunks"].to_list() == [4] * 4
    assert schedule("zb-h2", 4, 16).in_flight()["chunks"].to_list() == [7] * 4
    assert schedule("gpipe", 4, 8).in_flight()["chunks"].to_list() == [8] * 4


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "expected"),
    [  # Written down by hand from the rules of the papers.
        ("gpipe", 2, 2, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"),
        ("1f1b", 2, 3, "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"),
        ("zb-h1", 2, 2, "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"),
        ("zb-h2", 2, 3, "0F0,0F1,0F2,0I0,0W0,0I1,0W1,0I2,0W2\n1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2\n"),
        ("interleaved", 1, 1, "0F0,1F0,1B0,0B0\n"),
    ],
)
def test_orders_by_hand(name: str, stages: int, microbatches: int, expected: str) -> None:
    assert schedule(name, stages, microbatches).text() == expected


def sizes() -> list[tuple[str, int, int, int | None]]:
    """Every schedule on small pipelines, as far as it takes the numbers."""
    result = []
    for name in TITLES:
        for stages in (1, 2, 3, 4, 6):
            for microbatches in (1, 3, 4, 9) if stages < 6 else (3, 12):
                chunks = 3 if name.startswith("interleaved") and microbatches % 2 else None
                result.append((name, stages, microbatches, chunks))
    return result


def runs_through(s: Schedule) -> bool:
    """Whether the ranks can run their orders without waiting for each other for ever."""
    rows = s.ops.partition_by("stage", maintain_order=True)
    queues = [list(r.select("kind", "chunk", "microbatch", "chunk_b", "microbatch_b").iter_rows()) for r in rows]
    last = s.stages * (1 if s.placement == "both" else s.chunks) - 1
    done: set[tuple[str, int, int, int]] = set()
    moved = True
    while moved:
        moved = False
        for rank, queue in enumerate(queues):
            while queue:
                kind, chunk, mb, chunk_b, mb_b = queue[0]
                halves = [("F", chunk, mb), ("B", chunk_b, mb_b)] if kind == "FB" else [(kind, chunk, mb)]
                needs, gives = [], []
                for letter, c, number in halves:
                    copy = c if s.placement == "both" else 0
                    at = virtual_stage(s.placement, s.stages, c, rank)
                    gives.append((letter, copy, at, number))
                    if letter == "F" and at > 0:
                        needs.append(("F", copy, at - 1, number))
                    if letter == "B":
                        needs.append(("F", copy, at, number))
                        if at < last:
                            needs.append(("B", copy, at + 1, number))
                    if letter == "W":
                        needs.append(("B", copy, at, number))
                if not done.issuperset(needs):
                    break
                done.update(gives)
                queue.pop(0)
                moved = True
    return not any(queues)


def acyclic(graph: StepGraph) -> bool:
    """Whether no operation waits for itself."""
    try:
        return len(graph.levels) >= 0
    except CircleError:
        return False


def test_every_order_is_whole_and_free_of_deadlock() -> None:
    checked = 0
    for name, stages, microbatches, chunks in sizes():
        try:
            s = schedule(name, stages, microbatches, chunks)
        except UsageError:
            continue
        checked += 1
        where = f"{name} p={stages} m={microbatches} v={chunks}"
        assert dict(s.ops.schema) == OPS
        forwards = s.ops.filter(pl.col("kind").is_in(["F", "FB"])).select("stage", "chunk", "microbatch")
        back = s.ops.filter(pl.col("kind") == "B").select("stage", "chunk", "microbatch", "full")
        pairs = s.ops.filter(pl.col("kind") == "FB").select("stage", "chunk_b", "microbatch_b", "full")
        backwards = pl.concat([back, pairs.rename({"chunk_b": "chunk", "microbatch_b": "microbatch"})])
        weights = s.ops.filter(pl.col("kind") == "W").select("stage", "chunk", "microbatch")
        each = microbatches if s.placement == "both" else s.chunks * microbatches
        assert len(forwards) == len(backwards) == stages * each, where
        assert forwards.n_unique() == len(forwards), where
        assert backwards.n_unique() == len(backwards), where
        key = ["stage", "chunk", "microbatch"]
        assert weights.sort(key).equals(backwards.filter(pl.col("full").not_()).select(key).sort(key)), where
        # Interleaving needs whole groups, or a rest that fills the pipeline once (Megatron-LM checks the same).
        fits = not name.startswith("interleaved") or microbatches % stages == 0 or name == "interleaved-zb1p"
        runs = runs_through(s)
        assert runs or not fits, where
        assert acyclic(s.graph) == acyclic(s.with_transfers) == runs, where
    assert checked > 140


@pytest.mark.parametrize(
    ("name", "stages", "microbatches", "chunks", "words"),
    [
        ("gpip", 4, 8, None, "no schedule"),
        ("1f1b", 0, 8, None, "stages"),
        ("1f1b", 4, 0, None, "micro-batches"),
        ("1f1b", 4, 8, 2, "one chunk"),
        ("zb-v", 4, 8, 3, "2 chunks"),
        ("interleaved", 4, 8, 1, "at least 2 chunks"),
        ("dualpipe", 3, 8, None, "even number of stages"),
        ("dualpipe", 4, 7, None, "8 micro-batches"),
        ("dualpipev", 4, 7, None, "at least 8"),
        ("zbh1-paddle", 4, 3, None, "at least 4"),
        ("interleaved-zb1p", 4, 9, None, "multiple of 2"),
        ("interleaved-paddle", 4, 3, None, "at least 4"),
        ("interleaved-split-paddle", 4, 8, None, "exactly 4"),
        ("1f1b", 100_000, 100_000, None, "too many"),
        ("1f1b", 64, 50_000, None, "too many blocks"),
    ],
)
def test_impossible_combinations_get_a_sentence(
    name: str, stages: int, microbatches: int, chunks: int | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        schedule(name, stages, microbatches, chunks)


def test_names_and_aliases() -> None:
    assert canonical("FThenB") == canonical("GPIPE") == "gpipe"
    assert [readable(n) for n in ("vpp", "1f1b", "my own", None)] == ["Interleaved 1F1B", "1F1B", "my own", None]
    assert canonical("VPP") == canonical("Interleaved_1F1B") == "interleaved"
    assert canonical("ZBVPP".replace("VPP", "V")) == "zb-v"
    assert canonical("DualPipe V") == "dualpipev"


def test_placements() -> None:
    """Chunks of rank 1 of 4: loop 1, 5, 9; vee 1, 6, 9; both directions 1, 2."""
    assert [virtual_stage("loop", 4, c, 1) for c in range(3)] == [1, 5, 9]
    assert [virtual_stage("vee", 4, c, 1) for c in range(3)] == [1, 6, 9]
    assert [virtual_stage("both", 4, c, 1) for c in range(2)] == [1, 2]
