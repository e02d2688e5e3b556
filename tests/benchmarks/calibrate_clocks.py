"""What the thresholds of the clock fit do on simulated runs whose true clocks are known.

    python tests/benchmarks/calibrate_clocks.py [EXPERIMENT ...] [--runs 60]

Experiments: uncertainty, blocks, start, asymmetry, tolerances, offsets, steps. Each prints one row per value of a
threshold. The runs are those of tests/support/clock_runs.py: pipelines with 2 to 6 stages, 1 or 2 replicas, 1 to 12
micro-batches and 1 to 3 steps, offsets of up to 10 s, drifts of up to 30 ppm, delays with an exponential tail of 5 to
60 µs, and in a third of them senders that return early.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl

import trace_export
from samples.generators.paddle import TIMING, Job, write_logs
from samples.generators.pipeline import US, Block
from tests.support.clock_runs import Clocks, Run, make
from trace_export.clocks import bounds, fit, observations, solve, split_hosts, uncertainty
from trace_export.clocks.align import align
from trace_export.clocks.fit import ClockFit, fit_clocks
from trace_export.model import HOSTS, Declared, Profile, conform
from trace_export.pipeline import collectives, message_search, messages
from trace_export.pipeline.interpret import interpret

Row = dict[str, Any]


def drawn(count: int, **fixed: Any) -> Iterator[Run]:
    """Random runs, the same ones on every call."""
    draw = random.Random(1)
    for seed in range(count):
        clocks = Clocks(
            seed=seed,
            stages=draw.randint(2, 6),
            replicas=draw.randint(1, 2),
            microbatches=draw.randint(1, 12),
            steps=draw.randint(1, 3),
            offset_us=draw.choice([50.0, 4e3, 1e7]),
            drift_ppm=draw.uniform(0, 30),
            eager=draw.choice([0.0, 0.0, 0.3]),
            jitter_us=draw.uniform(5, 60),
            over_stages=draw.random() < 0.3,
        )
        yield make(replace(clocks, **fixed))


@contextmanager
def setting(module: ModuleType, **values: float) -> Iterator[None]:
    """The constants of `module` replaced by `values` for a while."""
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def fitted(run: Run) -> ClockFit:
    return fit_clocks(run.paired, run.numbered.collectives, run.profile.ranks)


def within_sd(runs: int) -> list[Row]:
    """SPREAD_OUT and SCARCE of clocks/uncertainty.py: how often the truth lies within the stated uncertainty."""
    rows = []
    for spread_out, scarce in (
        (1.0, 0.0),
        (1.0, 10.0),
        (4.0, 10.0),
        (9.0, 0.0),
        (9.0, 5.0),
        (9.0, 10.0),
        (9.0, 20.0),
        (25.0, 10.0),
    ):
        off, sd = [], []
        with setting(uncertainty, SPREAD_OUT=spread_out, SCARCE=scarce):
            for run in drawn(runs):
                clocks = fitted(run).clocks
                if clocks["status"].unique().to_list() != ["fitted"]:
                    continue
                left = run.misplaced_us(clocks)
                off += [abs(left[host]) for host in clocks["host"]]
                sd += (clocks["sd_ns"] / 1e3).to_list()
        ratio, size = np.array(off) / np.array(sd), np.array(sd)
        rows.append(
            {"SPREAD_OUT": spread_out, "SCARCE": scarce, "hosts": len(off)}
            | {f"within {k} sd": f"{np.mean(ratio <= k):.0%}" for k in (1, 2, 3)}
            | {"rms error µs": np.sqrt(np.mean(np.square(off))), "median sd µs": np.median(size)}
        )
    return rows


@dataclass(frozen=True)
class DriftingJob(Job):
    """A job on machines whose clocks drift from the true time of its start."""

    drift_ppm: tuple[float, ...] = ()

    def clock_error_ns(self, machine: int, time_ns: float) -> float:
        return self.clock_errors_us[machine] * US + self._drifted(machine, time_ns)

    def blocks(self) -> list[Block]:
        moved = ((block, block.rank // self.workers) for block in super().blocks())
        return [
            replace(b, start_ns=b.start_ns + round(self._drifted(machine, b.start_ns)),
                    end_ns=b.end_ns + round(self._drifted(machine, b.end_ns)))
            for b, machine in moved
        ]  # fmt: skip

    def _drifted(self, machine: int, time_ns: float) -> float:
        return self.drift_ppm[machine] * 1e-6 * (time_ns - TIMING.first)


def blocks_alone(runs: int) -> list[Row]:
    """Logs of blocks without messages, in windows of one to five steps: how often the truth lies within the stated
    uncertainty, in the middle of the window, where it is stated, and at its end, where an error of the drift adds."""
    draw = random.Random(1)
    ratios: dict[tuple[int, str], list[float]] = {}
    for seed in range(runs):
        machines, steps = draw.choice([2, 4]), draw.choice([1, 2, 3, 5])
        job = DriftingJob(
            stages=draw.choice([4, 8]), microbatches=draw.choice([4, 8, 16, 32]), steps=range(steps), seed=seed,
            machines=machines, clock_errors_us=tuple(draw.randint(-4000, 4000) for _ in range(machines)),
            drift_ppm=tuple(draw.uniform(-20, 20) for _ in range(machines)),
        )  # fmt: skip
        with TemporaryDirectory() as folder:
            write_logs(Path(folder), job)
            run = trace_export.load(folder).align()
        clocks = run.clocks.sort("host")
        first, last = run.spans.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        for where, time in (("middle", (first + last) // 2), ("end", last)):
            shown = clocks["offset_ns"] + clocks["drift"] * (time - clocks["reference_ns"])
            left = shown - pl.Series([job.clock_error_ns(machine, time) for machine in range(machines)])
            ratios.setdefault((steps, where), []).extend(((left - left.mean()).abs() / clocks["sd_ns"]).to_list())
    return [
        {"steps": steps, "where": where, "hosts": len(result)}
        | {f"within {k} sd": f"{np.mean(np.array(result) <= k):.0%}" for k in (1, 2, 3)}
        for (steps, where), result in sorted(ratios.items())
    ]


def first_round(runs: int) -> list[Row]:
    """FIRST_MESSAGE_US and FIRST_MEMBER_US of clocks/solve.py: does where the search begins change where it ends?"""
    rows = []
    reference = [fitted(run).clocks for run in drawn(runs)]
    for message, member in ((50.0, 10.0), (5.0, 10.0), (500.0, 10.0), (50.0, 1.0), (50.0, 100.0)):
        apart, off = [], []
        with setting(solve, FIRST_MESSAGE_US=message, FIRST_MEMBER_US=member):
            for run, usual in zip(drawn(runs), reference, strict=True):
                clocks = fitted(run).clocks
                left, before = run.misplaced_us(clocks), run.misplaced_us(usual)
                apart.append(max(abs(left[h] - before[h]) for h in left))
                off += list(left.values())
        rows.append(
            {"FIRST_MESSAGE_US": message, "FIRST_MEMBER_US": member, "rms error µs": np.sqrt(np.mean(np.square(off)))}
            | {"median change µs": np.median(apart), "largest change µs": max(apart)}
        )
    return rows


def asymmetry(runs: int) -> list[Row]:
    """CLEARLY_BETTER of clocks/fit.py: how often latencies are found to differ by direction, and the error then."""
    rows = []
    lags = {"equal": (12.0, 12.0), "20 and 12 µs": (20.0, 12.0), "60 and 10 µs": (60.0, 10.0)}
    for clearly in (0, 2, 4, 6, 10, 20):
        row: Row = {"CLEARLY_BETTER": clearly}
        with setting(fit, CLEARLY_BETTER=clearly):
            for name, lags_us in lags.items():
                actual, off = [], []
                for run in drawn(runs, lags_us=lags_us, over_stages=True):
                    result = fitted(run)
                    actual.append(result.asymmetric)
                    off += list(run.misplaced_us(result.clocks).values())
                row |= {f"{name}: found": f"{np.mean(actual):.0%}", f"{name}: median µs": np.median(np.abs(off))}
        rows.append(row)
    return rows


def one_name(run: Run) -> Profile:
    """All hosts of a run under one name."""
    ranks = run.profile.ranks.with_columns(host=pl.lit("box"))
    hosts = conform(pl.DataFrame({"host": ["box"], "machine": [0], "label": ["box"]}), HOSTS)
    return replace(run.profile, ranks=ranks, hosts=hosts, messages=run.paired)


def scaled(module: ModuleType, name: str, measure: Callable[[], Row]) -> list[Row]:
    """What `measure` gives with half, once, twice and ten times the tolerance."""
    usual = getattr(module, name)
    rows = []
    for factor in (0.1, 0.5, 1, 2, 10):
        with setting(module, **{name: usual * factor}):
            rows.append({"tolerance": f"{name} = {usual * factor / 1e3:g} µs"} | measure())
    return rows


def splits(runs: int) -> Row:
    """Machines of one name, 4 ms apart, must be split; ranks on one clock, read with an error of 9 µs, must not."""
    apart = [split_hosts.by_clock(one_name(run)).hosts.height == len(run.offset)
             for run in drawn(runs, offset_us=4e3, stages=3, replicas=1)]  # fmt: skip
    together = []
    for run in drawn(runs, ranks_per_host=12, offset_us=0.0, drift_ppm=0.0):
        noise = np.random.default_rng(len(together)).normal(0, 9e3, (2, len(run.paired))).astype(np.int64)
        read = run.paired.with_columns(pl.col("send_end_ns") + noise[0], pl.col("recv_end_ns") + noise[1])
        together.append(split_hosts.by_clock(replace(run.profile, messages=read)).hosts.height == 1)
    return {"several machines split": f"{np.mean(apart):.0%}", "one machine left whole": f"{np.mean(together):.0%}"}


def pairings(runs: int) -> Row:
    """Windows cut by up to 60 ms on each rank, messages without numbers: how many pairs are found, how many true."""
    right = wrong = there = 0
    ends = ["src_rank", "dst_rank", "send_end_ns", "recv_end_ns"]
    for run in drawn(runs, cut_ms=60.0, steps=2):
        unnumbered = run.profile.p2p.with_columns(microbatch=pl.lit(None, pl.Int32))
        result = messages.pair(replace(run.profile, p2p=unnumbered)).messages
        true = result.join(run.paired, on=ends, how="semi").height
        right, wrong, there = right + true, wrong + result.height - true, there + run.paired.height
    return {"pairs found": f"{right / there:.2%}", "wrong pairs": f"{wrong / max(right + wrong, 1):.2%}"}


def members(runs: int) -> Row:
    """Windows cut by up to 60 ms on each rank: the scatter of the ends of what is taken for one collective."""
    scatter, kept, there = [], 0, 0
    for run in drawn(runs, cut_ms=60.0, steps=3, replicas=2, over_stages=True):
        data = observations.gather(run.paired, run.numbered.collectives, run.profile.ranks)
        rate = np.array([run.rate[h] for h in data.hosts])
        begin = np.array([run.offset[h] for h in data.hosts]) / 1e3 - data.base_ns / 1e3
        end = data.left - begin[data.member] - rate[data.member] * data.left
        ends = pl.DataFrame({"event": data.event, "end": end}).group_by("event")
        scatter += ends.agg(pl.col("end").max() - pl.col("end").min())["end"].to_list()
        kept, there = kept + len(data.event), there + run.numbered.collectives.height
    far = np.mean(np.array(scatter) > 200)
    return {"members used": f"{kept / there:.1%}", "collectives whose ends truly differ by 0.2 ms": f"{far:.1%}"}


def contradictions(runs: int) -> Row:
    """Clocks with constant rates do not contradict themselves; the bound must hold the truth."""
    actual, inside = [], []
    for run in drawn(runs):
        result = fitted(run)
        left = run.misplaced_us(result.clocks)
        actual.append(bool(result.contradiction))
        bound = dict(result.clocks.select("host", "bound_ns").drop_nulls().iter_rows())
        inside += [abs(left[host]) <= limit / 1e3 for host, limit in bound.items()]
    return {"contradictions": f"{np.mean(actual):.0%}", "truth within the bound": f"{np.mean(inside):.1%}"}


def tolerances(runs: int) -> list[Row]:
    """The values of tolerances.py, scaled."""
    return [
        *scaled(split_hosts, "SAME_CLOCK_NS", lambda: splits(runs)),
        *scaled(split_hosts, "STEADY_NS", lambda: splits(runs)),
        *scaled(message_search, "MESSAGE_ENDS_NS", lambda: pairings(runs)),
        *scaled(message_search, "ROUND_TRIP_NS", lambda: pairings(runs)),
        *scaled(collectives, "COLLECTIVE_ENDS_NS", lambda: members(runs)),
        *scaled(bounds, "CAUSALITY_NS", lambda: contradictions(runs)),
    ]


def offsets(runs: int) -> list[Row]:
    """CONTRADICTION of pipeline/message_search.py, CLEARLY of pipeline/window_offsets.py: which pairs are found."""
    rows = []
    for name, values in (("CONTRADICTION", (0, 1, 10, 50, 1000)), ("CLEARLY", (1.0, 1.5, 3.0, 6.0, 20.0))):
        for value in values:
            with setting(message_search, **{name: value}):
                rows.append({"threshold": f"{name} = {value:g}"} | pairings(runs))
    return rows


def clock_steps(runs: int) -> list[Row]:
    """Clocks that are set: is the step found, of the right host, and if not, is it below what is said not to show?"""
    draw = random.Random(7)
    result: list[str] = []
    for seed in range(runs):
        stages, replicas = draw.randint(2, 8), draw.randint(1, 2)
        host, size = (
            f"host{draw.randrange(stages * replicas):02d}",
            draw.choice([-1, 1]) * draw.choice([300, 1000, 5000]),
        )
        clocks = Clocks(
            seed=seed, stages=stages, replicas=replicas, microbatches=draw.randint(2, 12), steps=draw.randint(2, 5),
            eager=draw.choice([0.0, 0.0, 0.3]), cut_ms=draw.choice([0.0, 0.0, 0.0, 20.0, 60.0]),
            over_stages=draw.random() < 0.3, drift_ppm=draw.uniform(0, 30), jitter_us=draw.uniform(5, 60),
            set_us={host: (draw.uniform(0.3, 0.7), size)},
        )  # fmt: skip
        profile = interpret(make(clocks).profile, Declared())
        done = align(profile)
        aligned, notes = done.clocks, [note.text for note in done.notes if note.code == "clock-set"]
        said = dict(aligned.select("host", "unseen_step_ns").iter_rows())[host]
        none = align(interpret(make(replace(clocks, set_us={})).profile, Declared())).clocks["steps"].null_count()
        result.append(
            "found" if len(notes) == 1 and f"clock of {host} " in notes[0]
            else "found, of either of two hosts" if len(notes) == 1 and host in notes[0].partition(" between ")[0]
            else "of another host, or of several" if notes
            else "said not to show" if said is None or said >= 1e3 * abs(size) else "not said"
        )  # fmt: skip
        result += [] if none == len(aligned) else ["found where there is none"]
    return [{"runs": runs} | {what: result.count(what) for what in sorted(set(result))}]


EXPERIMENTS: dict[str, Callable[[int], list[Row]]] = {
    "uncertainty": within_sd, "blocks": blocks_alone, "start": first_round, "asymmetry": asymmetry,
    "tolerances": tolerances, "offsets": offsets, "steps": clock_steps,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--runs", type=int, default=60)
    chosen = parser.parse_args()
    for name in chosen.experiments or EXPERIMENTS:
        print(f"\n{name}: {EXPERIMENTS[name].__doc__}")
        with pl.Config(
            tbl_rows=-1,
            tbl_cols=-1,
            tbl_width_chars=160,
            tbl_hide_dataframe_shape=True,
            float_precision=2,
            tbl_hide_column_data_types=True,
        ):
            print(pl.concat([pl.DataFrame([row]) for row in EXPERIMENTS[name](chosen.runs)], how="diagonal"))


if __name__ == "__main__":
    main()
