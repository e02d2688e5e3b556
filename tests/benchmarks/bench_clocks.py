"""How long one clock for many hosts takes, against the time that a plain sort of the same messages takes.

    python -m tests.benchmarks.bench_clocks [--hosts 1000] [--messages 1000000]

Also the memory, and how far off the hosts were placed, beside the stated error.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator

import numpy as np
import polars as pl

from tests.benchmarks import table
from tests.benchmarks.measure import Amount, of_work
from tests.benchmarks.table import Row
from trace_export.clocks.fit import ClockFit, fit_clocks
from trace_export.model import COLLECTIVES, MESSAGES, RANKS, conform

STAGES = 8
START_NS = 1_750_000_000_000_000_000
WINDOW_NS = 60 * 10**9


def tables(hosts: int, messages: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame, np.ndarray, np.ndarray]:
    """Pipelines of eight hosts each, joined by one collective per stage and step; offset (ns) and rate of each host."""
    rng = np.random.default_rng(1)
    offset, rate = rng.uniform(-5e6, 5e6, hosts), rng.uniform(-20e-6, 20e-6, hosts)
    below = np.array([h for h in range(hosts) if h % STAGES != STAGES - 1 and h + 1 < hosts])
    one = rng.choice(below, messages)
    down = rng.random(messages) < 0.5
    src, dst = np.where(down, one, one + 1), np.where(down, one + 1, one)
    sent = rng.uniform(0, WINDOW_NS, messages)
    lag = rng.uniform(7_500, 22_500, messages) + rng.exponential(3_000, messages)
    lag += np.where(rng.random(messages) < 0.3, rng.exponential(2e6, messages) + 1e6, 0)

    def stamp(host: np.ndarray, time: np.ndarray) -> np.ndarray:
        return START_NS + np.round(time + offset[host] + rate[host] * time).astype(np.int64)

    ends = {"send_end_ns": stamp(src, sent), "recv_end_ns": stamp(dst, sent + lag)}
    starts = {"send_start_ns": stamp(src, sent - 1e6), "recv_start_ns": stamp(dst, sent + lag - 2e6)}
    steps = np.repeat(np.linspace(0.05, 1, 20) * WINDOW_NS, hosts)
    member = np.tile(np.arange(hosts), 20)
    done = steps + rng.uniform(0, 10_000, len(steps))
    met = {"rank": member, "group": [f"dp{h % STAGES}" for h in member], "op": "allreduce",
           "sequence": np.repeat(np.arange(20), hosts), "start_ns": stamp(member, done - 5e6),
           "end_ns": stamp(member, done)}  # fmt: skip
    ranks = pl.DataFrame({"rank": range(hosts), "host": [f"host{h:05d}" for h in range(hosts)]})
    pairs = conform(pl.DataFrame({"src_rank": src, "dst_rank": dst} | starts | ends), MESSAGES)
    return pairs, conform(pl.DataFrame(met), COLLECTIVES), conform(ranks, RANKS), offset, rate


def rows(options: argparse.Namespace) -> Iterator[Row]:
    hosts, messages = (40, 4_000) if options.quick else (options.hosts, options.messages)
    pairs, met, ranks, offset, rate = tables(hosts, messages)
    plain = of_work(lambda: pairs.sort("src_rank", "dst_rank", "send_end_ns"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fits: list[ClockFit] = []
    fit = of_work(lambda: fits.append(fit_clocks(pairs, met, ranks)))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    clocks = fits[0].clocks.sort("host")
    at = START_NS + WINDOW_NS // 2
    shown = at + np.round(offset + rate * WINDOW_NS / 2)
    late = np.round(clocks["drift"].to_numpy() * (shown - clocks["reference_ns"].to_numpy()))
    left = shown - clocks["offset_ns"].to_numpy() - late - at
    left -= left.mean()
    within = np.mean(np.abs(left) < 2 * clocks["sd_ns"].to_numpy())
    what = f"clocks of {hosts:,} hosts, {messages:,} messages"
    yield Row(what, fit.seconds, "one sort", plain.seconds)
    yield Row(f"{what}: memory beside the tables", Amount(memory, "MB"))
    yield Row(f"{what}: error (rms)", Amount(float(left.std()) / 1e3, "µs"))
    yield Row(f"{what}: within twice the stated error", Amount(float(within) * 100, "%"), aim=90, at_least=True)


if __name__ == "__main__":
    parser = table.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=1_000_000)
    table.main(rows, parser.parse_args())
