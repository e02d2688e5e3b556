"""The search for the window offset of each channel of messages: it says which receive belongs to the i-th send.

Under the right offset the ends of sends and receives agree, no round trip is negative, and known labels agree. A
channel holds the transfers from one rank to another in one group (and direction), as in `messages`.
"""

from __future__ import annotations

import polars as pl

from trace_export.pipeline.window_offsets import CLEARLY, candidates, fit_under
from trace_export.tolerances import MESSAGE_ENDS_NS, ROUND_TRIP_NS

CONTRADICTION = 50
"""Cost of a negative round trip, relative to that of scatter. With 0, 96.1 % of the pairs of cut windows are found and
0.9 % of them are wrong; from 10 on, 99.5 % and 0.3 %."""


def search(sent: pl.DataFrame, received: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """channel, offset (null if none is certain) of all `channels`."""
    settled = agreeing(sent, received, channels).select("channel", offset=pl.lit(0, pl.Int64))
    left = channels.join(settled, on="channel", how="anti")
    if left.is_empty():
        return settled
    answers = _answers(channels).join(left.select("channel"), on="channel")
    needed = pl.concat([left.select("channel"), answers.select(channel="answer").drop_nulls()]).unique()
    asked = channels.join(needed, on="channel")
    sent, received = sent.join(needed, on="channel"), received.join(needed, on="channel")
    gap = left.select((pl.col("n").cast(pl.Int64) - pl.col("n_recv").cast(pl.Int64)).abs().max()).item()
    tried = pl.concat([_tried(sent, received, asked, k) for k in candidates(gap)]).filter("fits")
    fixed = settled.rename({"offset": "fixed"})
    tried = tried.join(fixed, on="channel", how="left").filter(pl.col("offset") == pl.coalesce("fixed", "offset"))
    chosen = left.select("channel").join(_best(tried, answers), on="channel", how="left")
    return pl.concat([settled, chosen])


def agreeing(sent: pl.DataFrame, received: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """The `channels` whose ends agree so well without an offset that no other offset need be tried."""
    tried = _tried(sent, received, channels, 0)
    both = (
        _answers(channels)
        .join(tried, on="channel")
        .join(tried.select(answer="channel", back="low"), on="answer", how="left")
    )
    close = (pl.col("low") + pl.col("back")).fill_null(0)
    agrees = (pl.col("scatter") <= MESSAGE_ENDS_NS) & (close >= -ROUND_TRIP_NS)
    all_paired = pl.col("n") == pl.max_horizontal("count", "count_recv")  # of two, another offset always fits one
    both = both.join(channels.select("channel", count="n", count_recv="n_recv"), on="channel")
    enough = both.filter("fits", (pl.col("n") >= 3) | (all_paired & (pl.col("n") >= 2)))
    left = enough.filter(~agrees)
    others = left if left.is_empty() else _agreeing_in_turn(sent, received, left)
    return pl.concat([enough.filter(agrees), others])


def _agreeing_in_turn(sent: pl.DataFrame, received: pl.DataFrame, channels: pl.DataFrame) -> pl.DataFrame:
    """The `channels` (with their `answer`) in which each end agrees with the previous one, and each round trip is
    possible: if a clock was set in between, the ends of all do not agree."""
    delay = pl.col("end_right") - pl.col("end")
    here = sent.join(received.select("channel", "at", "end"), on=["channel", "at"], suffix="_right")
    delays = here.select("channel", "at", delay=delay).sort("channel", "at")
    change = pl.col("delay").diff()
    steady = delays.group_by("channel").agg(change=change.quantile(0.75) - change.quantile(0.25))
    trips = (
        delays.join(channels.select("channel", "answer"), on="channel")
        .join(delays.rename({"channel": "answer", "delay": "back"}), on=["answer", "at"])
        .group_by("channel")
        .agg(close=(pl.col("delay") + pl.col("back")).quantile(0.05))
    )
    agreeing = steady.filter(pl.col("change") <= MESSAGE_ENDS_NS).join(
        trips.filter(pl.col("close").abs() <= ROUND_TRIP_NS), on="channel"
    )
    return channels.join(agreeing, on="channel", how="semi")


def _answers(channels: pl.DataFrame) -> pl.DataFrame:
    """channel, answer: the channel in the opposite direction, in the same group if there is one, else the largest."""
    back = channels.select(src_rank="dst_rank", dst_rank="src_rank", other="group", answer="channel", size="n")
    return (
        channels.join(back, on=["src_rank", "dst_rank"], how="left")
        .with_columns(same=pl.col("other") == pl.col("group"))
        .sort("channel", "same", "size", "answer", descending=[False, True, True, False], nulls_last=True)
        .group_by("channel", maintain_order=True)
        .agg(pl.col("answer").first())
    )


def _tried(sent: pl.DataFrame, received: pl.DataFrame, channels: pl.DataFrame, offset: int) -> pl.DataFrame:
    """How well each channel fits under a window offset: channel, n, scatter, spread, low, fits, offset.

    For the differences of the ends, in ns, scatter is the range of the middle half, spread that of the earlier half (a
    late end may be due to waiting), low the earliest. fits: at least half of the shorter side is paired, and known
    micro-batches and steps agree.
    """
    delay = pl.col("end_right") - pl.col("end")
    numbers = (pl.col("microbatch") == pl.col("microbatch_right")) & pl.col("chunk").eq_missing(pl.col("chunk_right"))
    steps = (pl.col("step") == pl.col("step_right")).mean().fill_null(1.0)
    enough = pl.col("n") >= pl.col("least")
    tried = fit_under(
        sent, received, offset, by=["channel"],
        scatter=delay.quantile(0.75) - delay.quantile(0.25),
        spread=delay.quantile(0.5) - delay.quantile(0.05),
        low=delay.quantile(0.05),
        same=pl.min_horizontal(numbers.mean().fill_null(1.0), steps),
    )  # fmt: skip
    least = channels.select("channel", least=pl.min_horizontal("n", "n_recv") / 2)
    return tried.join(least, on="channel").select(
        "channel", "n", "scatter", "spread", "low", "offset", fits=enough & (pl.col("same") > 0.9)
    )


def _best(tried: pl.DataFrame, answer: pl.DataFrame) -> pl.DataFrame:
    """The offset of each channel that, with some offset of the opposite channel, has the lowest cost.

    Null where it is not 0 and another offset has nearly the same cost.

    Example: from rank 0 to 1 the earliest message takes 5 ms under offset 0 and 40 ns under 1; from 1 to 0 it takes
    -4 ms under offset 0 and 60 ns under -1. A round trip takes 1 ms under 0 and 0, 5 ms under 0 and -1, less than no
    time under 1 and 0, and 100 ns under 1 and -1: these are chosen.
    """
    here = tried.select("channel", "offset", "spread", "low")
    there = tried.select(answer="channel", back_offset="offset", back_spread="spread", back="low")
    both = answer.join(here, on="channel").join(there, on="answer", how="left")
    close = pl.col("low") + pl.col("back")
    contradiction = CONTRADICTION * (-close - ROUND_TRIP_NS).clip(lower_bound=0)
    cost = (
        pl.col("spread") + pl.col("back_spread").fill_null(0) + (close.clip(lower_bound=0) + contradiction).fill_null(0)
    )
    ranked = (
        both.with_columns(cost=cost)
        .group_by("channel", "offset")
        .agg(pl.col("cost").min())
        .sort("channel", "cost", pl.col("offset").abs(), "offset")
        .group_by("channel", maintain_order=True)
        .agg(
            pl.col("offset", "cost").first(),
            second=pl.col("cost").get(1, null_on_oob=True),
        )
    )
    clear = pl.col("second").is_null() | (pl.col("second") >= CLEARLY * pl.col("cost"))
    return ranked.select("channel", offset=pl.when(clear | (pl.col("offset") == 0)).then("offset"))
