"""Recorded and generated captures against expected values made by others, to the nanosecond."""

import csv
import gzip
import hashlib
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import trace_export
from tests.conftest import Cli
from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.find import find
from trace_export.sources.merge import merge
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.read import read
from trace_export.sources.source import ReadOptions

CAPTURES = ["A_zbh1_all", "B_1f1b", "C_InterleavedZeroBubble", "graph_node"]
LABELS = ["rank", "step", "kind", "microbatch", "chunk", "marker"]
CANARIES = (b"CANARY_ENV", b"must-not-appear", b"canary-")
AHEAD_NS = 15_000
"""How far a block may reach out of its CUDA events' span: the offset between the two clocks is fitted."""


@pytest.fixture(scope="module")
def unpacked(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The captures as a user has them, a folder each."""
    root = tmp_path_factory.mktemp("captures")
    for packed in (recorded / "nsys").glob("*/*.sqlite.gz"):
        folder = root / packed.parent.name
        folder.mkdir(exist_ok=True)
        with gzip.open(packed) as source, (folder / packed.stem).open("wb") as target:
            shutil.copyfileobj(source, target)
    return root


def load(folder: Path, options: ReadOptions | None = None) -> Profile:
    profile, refused = merge(read(source, options or ReadOptions()) for source in find(folder).sources)
    assert not refused
    return profile.validate()


def expected(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema_length=None).with_columns(
        pl.col("marker").str.split(",").list.first(), pl.col("step", "microbatch", "chunk", "rank").cast(pl.Int32)
    )


def digests(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


@pytest.mark.parametrize("name", CAPTURES)
def test_blocks_equal_the_oracle(recorded: Path, unpacked: Path, name: str) -> None:
    before = digests(unpacked / name)
    spans = load(unpacked / name).spans.with_columns(pl.col("marker").str.split(",").list.first())
    assert digests(unpacked / name) == before
    oracle = expected(recorded / "nsys" / name / "oracle.csv")
    columns = [*LABELS, "start_ns", "end_ns"]
    want = oracle.filter(pl.col("start_ns").is_not_null())
    assert sorted(spans.select(columns).rows(), key=str) == sorted(want.select(columns).rows(), key=str)
    assert set(spans["origin"]) == {"device"}
    truth = recorded / "nsys" / name / "truth.csv"
    if truth.exists():
        events = expected(truth).drop("marker")
        both = spans.join(events, on=["rank", "step", "kind", "microbatch", "chunk"], suffix="_cuda", nulls_equal=True)
        assert both.height >= spans.filter(pl.col("microbatch").is_not_null()).height > 0
        duration, available = pl.col("end_ns") - pl.col("start_ns"), pl.col("end_ns_cuda") - pl.col("start_ns_cuda")
        assert both.filter(duration > available).is_empty()
        early = pl.col("start_ns") < pl.col("start_ns_cuda") - AHEAD_NS
        assert both.filter(early | (pl.col("end_ns") > pl.col("end_ns_cuda") + AHEAD_NS)).is_empty()


@pytest.mark.parametrize("name", CAPTURES)
def test_host_ranges_equal_the_oracles(recorded: Path, unpacked: Path, name: str) -> None:
    profile = load(unpacked / name, ReadOptions(host_ranges=True))
    oracle = expected(recorded / "nsys" / name / "oracle.csv")
    if "range-ends-repaired" not in [n.code for n in profile.notes]:
        got = profile.spans.select("rank", "start_ns", "end_ns").rows()
        assert sorted(got) == sorted(oracle.select("rank", "range_start_ns", "range_end_ns").rows())
    assert profile.spans.height == oracle.height
    assert set(profile.spans["origin"]) == {"host"}


def test_notes_of_the_real_captures(unpacked: Path) -> None:
    interleaved = load(unpacked / "C_InterleavedZeroBubble")
    counts = {n.code: n.count for n in interleaved.notes}
    assert (counts["range-ends-repaired"], counts["blocks-without-work"]) == (880, 16)
    declared = interleaved.declared
    assert (declared.pp, declared.chunks, declared.placement) == (4, 2, "loop")
    assert interleaved.ranks.select("rank", "stage", "stage_origin").rows() == [(r, r, "recorded") for r in range(4)]
    zero_bubble = load(unpacked / "A_zbh1_all")
    assert any("Not all NVTX events might have been collected" in n.text for n in zero_bubble.notes)
    assert "range-ends-repaired" not in [n.code for n in zero_bubble.notes]
    assert zero_bubble.ranks["rank_origin"].to_list() == ["recorded"] * 4
    sessions = load(unpacked / "B_1f1b")
    assert sessions.hosts["host"].to_list() == ["node0"]


@pytest.mark.parametrize("name", ["A_zbh1_all", "B_1f1b", "C_InterleavedZeroBubble"])
def test_a_whole_capture_has_no_warning(unpacked: Path, name: str) -> None:
    run = trace_export.load(unpacked / name).align()
    assert not [note for note in run.notes if note.level == "warning"]
    assert run.profile.steps["whole"].all()


def test_a_capture_without_kernels_is_refused_and_drawn_on_demand(unpacked: Path) -> None:
    (source,) = find(unpacked / "O_2022").sources
    with pytest.raises(SourceError, match=r"no GPU work in the file.*too old for the driver.*`host_ranges`"):
        read(source, ReadOptions())
    assert read(source, ReadOptions(host_ranges=True)).spans.height > 0


def test_no_canary_in_any_output(unpacked: Path, tmp_path: Path, run_cli: Cli) -> None:
    for name in ("A_zbh1_all", "C_InterleavedZeroBubble", "O_2022"):
        out = tmp_path / name
        out.mkdir()
        more = ["--format", "perfetto,chrome,parquet,csv", "--detail", "kernels", "--debug"]
        done = run_cli("--log_dir", unpacked / name, "--out", out, *more)
        assert done.returncode == (1 if name == "O_2022" else 0), done.stderr
        looked = run_cli("inspect", unpacked / name)
        texts = [done.stdout.encode(), done.stderr.encode(), looked.stdout.encode(), looked.stderr.encode()]
        for content in [*texts, *(p.read_bytes() for p in out.rglob("*") if p.is_file())]:
            assert not [c for c in CANARIES if c in content], name


GENERATED = {
    "zero-bubble, two hosts": "--hosts 2 --skew-ms 0,3.7 --nested --text-id 0.5 --steps 2 --kernels 12000 --procs 4",
    "torch, wrong ends": "--style torchpp --chunks 2 --wrong-ends --nested --steps 1 --kernels 9000 --procs 4",
    "plain, shifted": "--style plain --same-device-id --time-shift-ns 123456789 --steps 2 --kernels 6000 --procs 4",
    "deepspeed": "--style deepspeed --steps 2 --kernels 6000 --procs 4",
    "dicts, graphs": "--style dict --graphs --steps 2 --kernels 6000 --procs 4",
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_blocks_and_transfers_equal_the_truth(recorded: Path, tmp_path: Path, name: str) -> None:
    generator = [sys.executable, str(recorded.parent / "tools" / "gen_nsys.py"), str(tmp_path)]
    subprocess.run([*generator, *GENERATED[name].split()], check=True, capture_output=True)
    profile = load(tmp_path)
    truth = pl.read_csv(tmp_path / "truth.csv", infer_schema_length=None)
    columns = ["rank", "kind", "start_ns", "end_ns", "marker"]
    got = profile.spans.with_columns(pl.col("marker").str.replace(r", op_id = \d+$", "")).select(columns)
    assert sorted(got.rows()) == sorted(truth.select(columns).rows())
    ints = truth.with_columns(pl.col("rank", "step", "microbatch", "chunk").cast(pl.Int32))
    both = profile.spans.join(ints, on=["rank", "start_ns", "end_ns"], suffix="_true")
    for label in ("step", "microbatch", "chunk"):
        assert both.filter(pl.col(label) != pl.col(f"{label}_true")).is_empty()
    messages = pl.read_csv(tmp_path / "messages.csv")
    for role, rank in (("send", "src_rank"), ("recv", "dst_rank")):
        want = messages.select(rank, "direction", f"{role}_start_ns", f"{role}_end_ns").rows()
        mine = profile.p2p.filter(pl.col("role") == role).select("rank", "direction", "start_ns", "end_ns").rows()
        assert sorted(mine) == sorted(want)


def test_names_of_real_torch_schedules(recorded: Path) -> None:
    """Every range of DualPipeV and ZBVZeroBubble is known, with each stage's F and B once per micro-batch."""
    with (recorded / "nsys" / "torch_names.csv").open() as file:
        rows = list(csv.DictReader(file))
    for schedule in ("DualPipeV", "ZBVZeroBubble"):
        texts = [r["name"] for r in rows if r["schedule"] == schedule]
        names = pl.DataFrame({"text": texts}).join(Dialects().parse(pl.Series(texts)).names, on="text", how="left")
        assert not names["role"].null_count()
        forward = names.filter(pl.col("kind").is_in(["F", "FB"])).select("stage", "microbatch").rows()
        overlapped = names.filter(pl.col("kind") == "FB").select("stage_b", "microbatch_b").rows()
        backward = names.filter(pl.col("kind") == "B").select("stage", "microbatch").rows() + overlapped
        assert Counter(forward) == Counter(backward) == Counter((s, m) for s in range(8) for m in range(8))
