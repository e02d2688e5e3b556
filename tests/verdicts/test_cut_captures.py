"""A capture that begins or ends inside a step says of the others what one of whole steps says."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from samples.generators.data_parallel import WRITERS, Job, simulate
from samples.generators.pipeline import MS
from tests.support.command import command
from tests.support.rows import seeds
from tests.verdicts.cases import drawn, drawn_sound
from tests.verdicts.judge import causes, is_at

KINDS = ("slow stage", "slow rank", "slow replica", "slow link")


def report_of_cut(folder: Path, job: Job, draw: random.Random) -> dict[str, Any]:
    """The document of a report on an nsys capture of the job that begins inside its first step, ends inside its last
    one, or both. What began before the capture is not in it; a range that ends after it has no end."""
    WRITERS["nsys"](folder, job)
    files = sorted(folder.rglob("*.sqlite"))
    ends = [_one(file, "SELECT min(start), max(end) FROM CUPTI_ACTIVITY_KIND_KERNEL") for file in files]
    first, last = min(low for low, _ in ends), max(high for _, high in ends)
    step, how = (last - first) / job.steps, draw.choice(("begins", "ends", "both"))
    begin = first + step * draw.uniform(0.1, 0.9) if how != "ends" else first
    end = last - step * draw.uniform(0.1, 0.9) if how != "begins" else last
    for file in files:
        with sqlite3.connect(file) as database:
            for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
                database.execute(f"DELETE FROM {table} WHERE start < ? OR start > ?", (begin, end))
            database.execute("UPDATE NVTX_EVENTS SET end = NULL WHERE end > ?", (end,))
            for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
                database.execute(f"DELETE FROM {table} WHERE end > ?", (end,))
    document: dict[str, Any] = json.loads(command("report", folder, "--json", "--jobs", 1).stdout)
    return document


def _one(file: Path, query: str) -> tuple[int, int]:
    with sqlite3.connect(file) as database:
        low, high = database.execute(query).fetchone()
    return int(low), int(high)


@pytest.mark.parametrize("seed", seeds(2, 24))
def test_a_planted_cause_is_named_in_a_cut_capture(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    case = drawn(9000 + seed, draw.choice(KINDS), "nsys")
    job, sound = (replace(one, steps=max(6, one.steps)) for one in (case.job, case.sound))
    gain = simulate(job).step_ns - simulate(sound).step_ns
    named = causes(report_of_cut(tmp_path, job, draw))
    assert named and named[0]["facts"]["gain_ns"] == pytest.approx(gain, rel=0.15)
    if "src_rank" not in case.place or case.job.tensor == 1:  # else that of the groups at both ends is named
        assert is_at(named[0], case.place)


@pytest.mark.parametrize("seed", seeds(2, 24))
def test_nothing_is_named_in_a_cut_capture_of_a_sound_job(seed: int, tmp_path: Path) -> None:
    job, _ = drawn_sound(7000 + seed)
    schedule = "1f1b" if job.schedule == "vee" else job.schedule
    document = report_of_cut(tmp_path, replace(job, steps=max(5, job.steps), schedule=schedule), random.Random(seed))
    assert not causes(document)


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_a_link_is_slow_in_a_table_that_begins_inside_a_step(seed: int, tmp_path: Path) -> None:
    """The rank that waits for it is neither late, because inputs of its first blocks are cut off, nor does it lack
    weight gradients, because it idles only after its backwards."""
    sound = Job(stages=4, replicas=3, schedule="gpipe", microbatches=12, steps=6, jitter=0.01, seed=seed)
    ends = sound.rank(1, 1), sound.rank(1, 2)
    job = replace(sound, links={ends: 20 * MS, ends[::-1]: 20 * MS})
    run = WRITERS["work"](tmp_path, job)
    (file,) = tmp_path.rglob("*.parquet")
    rows = pl.read_parquet(file)
    begin = rows["start_ns"].min() + round(0.6 * run.step_ns)  # type: ignore[operator]
    rows.filter(pl.col("start_ns") > begin).write_parquet(file)
    first = causes(json.loads(command("report", file, "--json", "--jobs", 1).stdout))[0]
    assert is_at(first, {"src_rank": ends[0], "dst_rank": ends[1]})
    assert first["facts"]["gain_ns"] == pytest.approx(run.step_ns - simulate(sound).step_ns, rel=0.1)


@pytest.mark.parametrize("ranks", [{1}, {0, 1}])
def test_nobody_is_late_because_others_lack_their_transfers(ranks: set[int], samples: Path, tmp_path: Path) -> None:
    """Blocks of the sample start 250 µs after a receive. That is seen only where the receive is in the file; as a trace
    that ends too early has its kernels no more, others would seem to start at once."""
    for path in (samples / "kineto/two_hosts").glob("*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        if trace["distributedInfo"]["rank"] in ranks:
            trace["traceEvents"] = [event for event in trace["traceEvents"] if "nccl" not in event["name"].lower()]
            (tmp_path / path.stem).write_text(json.dumps(trace))
        else:
            shutil.copy(path, tmp_path)
    document = json.loads(command("report", tmp_path, "--json", "--jobs", 1).stdout)
    assert len(document["hosts"]) == 2
    assert not causes(document)
