"""The recorded steps of a run, as the tables from which the measured graph is made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from trace_export.model import BY_BLOCKS, INT, RANK_STEP_KEY, SEGMENT, STEP_KEY, WORK_KINDS, Profile
from trace_export.ordering import only, ordered, packed, repeated, stretches
from trace_export.pipeline.evaluations import uninterrupted
from trace_export.pipeline.replicas import data_parallel
from trace_export.pipeline.stages import depth
from trace_export.schedules.operation_types import LN
from trace_export.schedules.schedule import virtual_stage
from trace_export.segments import with_window
from trace_export.tolerances import MESSAGE_AFTER_NS

MISSING = {"ranks-missing", "stages-missing", "stages-uneven"}
"""Notes that say that profiles are missing."""
PARTIAL = {"ranks-chosen", "ranks-absent"} | MISSING
"""Notes that say that ranks of the run are not here."""
UNKNOWN = {"stages-deeper", "machine-alone"}
"""Notes that say that an unknown number of whole stages is not here."""
ODD = 10
"""A step longer than this many times the median contains a stop, or work that no other step has."""


KINDS = (*WORK_KINDS, "OPT")
"""The kinds of `Recorded.blocks`."""


@dataclass(frozen=True)
class Recorded:
    """The tables; times are Int64 nanoseconds from `zero_ns`.

    `ranks`: rank, stage, replica (the data-parallel one: tensor- and context-parallel peers share it), host
    (label), device, outside (see `model.RANKS`), clock_ns (how far its clock may be off, where the order of blocks
    alone tells; else 0); an unknown stage or replica counts as 0. `steps`: step_index, segment, run, step, counts
    (whether means are over it), sorted by time; the steps of a segment follow one another on one time axis.
    `blocks`, a row per block, sorted by (segment, rank, start): span (`SPANS.id`), rank, segment,
    step_index, kind, microbatch, chunk, start, end, lacks (it must have an input from another rank), first_part (1:
    its backward has a later block, too; 2: its weight gradient has a later block, and others' have none; 3: both;
    else 0). `edges`, a row per dependency between blocks: src, dst (rows of `blocks`), direction, and of its
    message sent, received, arrived (null where none was recorded). `parts`, a row per rank and collective:
    collective (a number), op, group, rank, segment, step_index, start, end. `odd`: steps that last no time, or more
    than `ODD` times the median; a segment ends before and after each of them. `partial`: whether ranks of the run
    are not here; `incomplete`: whether whole stages of the pipeline are not, or may not be. `stages`: the number of
    stages of the pipeline, `stage_ranks`: of ranks of a stage; 0 if unknown. `of_host`: the blocks have times of
    the host.
    """

    zero_ns: int
    ranks: pl.DataFrame
    steps: pl.DataFrame
    blocks: pl.DataFrame
    edges: pl.DataFrame
    parts: pl.DataFrame
    odd: tuple[tuple[int | None, int | None], ...]
    partial: bool
    incomplete: bool
    stages: int
    stage_ranks: int
    of_host: bool

    @property
    def blind(self) -> npt.NDArray[np.bool_]:
        """The blocks that need an input from another rank which was not recorded."""
        blind: npt.NDArray[np.bool_] = self.blocks["lacks"].to_numpy(writable=True)
        blind[self.edges["dst"].to_numpy()] = False
        return blind


def recorded(profile: Profile) -> Recorded:
    """The tables of a profile that has been interpreted and aligned."""
    ranks = _ranks(profile)
    spans = _blocks(profile)
    zero = spans["start_ns"].min() if spans.height else 0
    assert isinstance(zero, int)
    steps, odd = _steps(profile, spans)
    runs = stretches(spans, *STEP_KEY).join(steps, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    index, segment = (repeated(runs[name], runs["len"]) for name in ("step_index", "segment"))
    placed = spans.drop(STEP_KEY).with_columns(
        index, segment, pl.Series("lane", packed(segment.to_numpy(), spans["rank"].to_numpy())),
        start=pl.col("start_ns") - zero, end=pl.col("end_ns") - zero,
    )  # fmt: skip
    blocks = (
        ordered(placed.drop("start_ns", "end_ns"), "lane", "start", "end", "span").drop("lane").with_row_index("row")
    )
    edges, parts = _edges(profile, blocks, zero), _parts(profile, steps, blocks, zero)
    codes, stages = {note.code for note in profile.notes}, depth(profile.ranks, profile.declared)
    lacking = ranks["stage"].n_unique() < stages
    unknown = bool(codes & UNKNOWN) or ("ranks-absent" in codes and 0 not in ranks["rank"])  # it is on the first stage
    unknown = unknown or (not lacking and _nowhere_whole(profile, ranks))
    partial = bool(codes & PARTIAL) or lacking or unknown
    size = (profile.declared.world or 0) // stages
    if not size and "stages-uneven" in codes and "ranks-chosen" not in codes:  # as many as the fullest stage has
        size = int(ranks["stage"].value_counts()["count"].to_numpy().max())
    return Recorded(
        zero, ranks, steps, blocks, edges, parts, odd, partial, lacking or unknown, 0 if unknown else stages, size,
        of_host="host-times" in codes,
    )  # fmt: skip


def _nowhere_whole(profile: Profile, ranks: pl.DataFrame) -> bool:
    """Whether in each replica a rank exchanges data with one that is not here."""
    here = pl.col("peer").is_in(ranks["rank"].implode())
    open_ends = profile.p2p.lazy().drop_nulls("peer").filter(~here).select("rank").unique().collect()
    return bool(ranks.select(pl.col("rank").is_in(open_ends["rank"].implode()).any().over("replica").all()).item())


def _ranks(profile: Profile) -> pl.DataFrame:
    """rank, stage, replica, host, device, outside, clock_ns."""
    clocks = profile.clocks.filter(BY_BLOCKS).select("host", clock_ns="bound_ns")
    hosts = profile.hosts.select("host", label=pl.coalesce("label", "host"))
    return (
        profile.ranks.sort("rank")
        .join(hosts, on="host", how="left", maintain_order="left")
        .join(clocks, on="host", how="left", maintain_order="left")
        .join(data_parallel(profile.ranks).rename({"replica": "pipeline"}), on="rank", maintain_order="left")
        .select(
            "rank",
            pl.col("stage").fill_null(0),
            replica="pipeline",
            host=pl.coalesce("label", "host").fill_null(""),
            device="device",
            outside="outside",
            clock_ns=pl.col("clock_ns").fill_null(0.0),
        )
    )


def _blocks(profile: Profile) -> pl.DataFrame:
    """Blocks of pipeline work and optimizers, with `lacks`. An optimizer that is inferred beside marked blocks is left
    out: it is there only if device tasks were asked for, and an explanation must not depend on that."""
    spans = only(profile.spans, pl.col("kind").is_in(KINDS))
    if profile.spans.filter(pl.col("kind") == "OPT", pl.col("origin") == "inferred").height:
        marked = (pl.col("origin") != "inferred").any().over("rank")
        spans = only(spans, ~((pl.col("kind") == "OPT") & (pl.col("origin") == "inferred") & marked))
    kind, columns = pl.col("kind").cast(pl.Enum(KINDS)), ["microbatch", "chunk", "start_ns", "end_ns"]
    blocks = spans.select(pl.col("id").alias("span"), "rank", *STEP_KEY, kind, *columns)
    passes = profile.passes()
    lacking = passes.filter(_lacks(profile))["span"]
    first, split = _first_parts(passes)
    part = pl.col("span").is_in(first.implode()).cast(pl.UInt8) + 2 * pl.col("span").is_in(split.implode())
    return blocks.with_columns(lacks=pl.col("span").is_in(lacking.implode()), first_part=part.cast(pl.UInt8))


def _first_parts(passes: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """The blocks that run only the first part of a backward, such as that of the head of the model before its layers;
    and, if only some backwards are split (DualPipe), those whose weight gradient is in a later block."""
    key = [*RANK_STEP_KEY, "microbatch", "chunk"]
    backwards = passes.filter(kind="B").drop_nulls("microbatch").select("span", "start_ns", *key)
    halves = passes.filter(kind="W").drop_nulls("microbatch").select(key)
    split = backwards["span"].clear()
    if 0 < len(halves) < len(backwards):
        split = backwards.join(halves, on=key, how="semi", nulls_equal=True)["span"]
    if backwards.select(pl.struct(key).hash().n_unique()).item() == len(backwards):  # a third of the time of `filter`
        return backwards["span"].clear(), split
    several = backwards.filter(backwards.select(key).is_duplicated())
    return several.filter(pl.col("start_ns") < pl.col("start_ns").max().over(key))["span"], split


def _lacks(profile: Profile) -> pl.Expr:
    """Whether a pass needs an input from another rank: not at the ends of the pipeline, nor where a V turns round."""
    placement = profile.interpreted.placement
    stages, chunks = profile.ranks["stage"].max(), profile.spans["chunk"].max()
    assert not isinstance(stages, str) and not isinstance(chunks, str)
    count = max(int(stages or 0) + 1, profile.declared.pp or 1) + bool(profile.declared.deeper)  # type: ignore[arg-type]
    last = count * (int(chunks or 0) + 1 if placement != "both" else 1) - 1  # type: ignore[arg-type]
    at = virtual_stage(placement, count, pl.col("chunk"), pl.col("stage").fill_null(0))
    alone = pl.lit(count == 1)
    turn, turn_b = (at % count == 0, (at + 1) % count == 0) if placement == "vee" else (alone, alone)
    forward = (pl.col("kind") == "F") & (at > 0) & ~turn
    back = (pl.col("kind") == "B") & (at < last) & ~turn_b
    return forward | back


def _steps(profile: Profile, spans: pl.DataFrame) -> tuple[pl.DataFrame, tuple[tuple[int | None, int | None], ...]]:
    """The steps in their segments, and the odd ones. A segment goes on while step numbers do, and the clock."""
    begun = spans.group_by(STEP_KEY).agg(begin=pl.col("start_ns").min())
    begun = with_window(begun, profile.spans).sort(*SEGMENT, "begin", "step")
    steps = begun.join(profile.steps, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    unchecked = profile.steps.is_empty()
    works = pl.col("whole").is_not_null() | unchecked  # not so an optimizer alone, whose step was cut
    some = pl.col("whole").any()  # where no step is whole, all count
    steps = steps.with_columns(
        pl.when(some).then(pl.col(name).fill_null(False)).otherwise(works).alias(name) for name in ("whole", "counts")
    )
    numbered = pl.int_range(pl.len(), dtype=INT)
    if profile.declared.step_zeros is not None:  # each step has a zero of its own
        return steps.select(numbered.alias("step_index"), numbered.alias("segment"), *STEP_KEY, "counts"), ()
    steps = steps.with_columns(next=pl.col("begin").shift(-1) - pl.col("begin"))
    steps = steps.with_columns(clear=uninterrupted(profile, "begin", "next").is_not_null())  # by an evaluation
    same = [pl.col(name).eq_missing(pl.col(name).shift()) for name in SEGMENT]
    follows = (
        pl.all_horizontal(same)
        & pl.col("clear").shift()
        & (pl.col("step") == pl.col("step").shift() + 1)
        & (pl.col("whole") == pl.col("whole").shift())
    )
    steps = steps.with_columns(follows=follows.fill_null(False))
    length = pl.when(pl.col("follows").shift(-1)).then("next")
    odd = ((length <= 0) | (length > ODD * length.median())).fill_null(False)
    steps = steps.with_columns(odd=odd)
    cut = ~pl.col("follows") | pl.col("odd").shift(fill_value=False)
    steps = steps.with_columns(segment=cut.cum_sum().cast(INT) - 1, step_index=numbered)
    names = tuple(steps.filter("odd").select(STEP_KEY).iter_rows())
    return steps.select("step_index", "segment", *STEP_KEY, "counts"), names


def _edges(profile: Profile, blocks: pl.DataFrame, zero: int) -> pl.DataFrame:
    """The dependencies with both blocks there, each with its message."""
    posted = pl.max_horizontal("recv_start_ns", "ready_ns")  # where the send was not recorded
    messages = profile.messages.lazy().drop_nulls("recv_end_ns").select(
        "src_pass", "dst_pass", "src_rank", "dst_rank", "direction",
        sent=pl.coalesce("send_start_ns", posted) - zero, arrived=pl.col("recv_end_ns") - zero,
        received=pl.coalesce("recv_start_ns", "send_start_ns", "ready_ns") - zero,
    ).collect()  # fmt: skip
    pair = pl.col("src_pass").cast(pl.UInt64) * (1 << 32) + pl.col("dst_pass")
    timed = messages.drop_nulls(["src_pass", "dst_pass"]).select("sent", "received", "arrived", pair=pair)
    if timed["pair"].n_unique() < len(timed):
        timed = timed.sort("arrived").unique("pair", keep="first")
    edges, times = _between_blocks(profile, blocks), ("sent", "received", "arrived")
    if timed.is_empty():
        edges = edges.with_columns(pl.lit(None, pl.Int64).alias(name) for name in times)
    else:
        rows = timed.select("pair").with_row_index("row")
        row = edges.select(pair=pair).join(rows, on="pair", how="left", maintain_order="left")["row"]
        edges = edges.with_columns(timed[name].gather(row) for name in times)
    edges = edges.drop("src_pass", "dst_pass").sort("made", "src", "dst", "direction")
    nameless = messages.filter(pl.any_horizontal(pl.col("src_pass", "dst_pass").is_null())).drop_nulls("sent")
    if nameless.is_empty():
        return edges
    edges = edges.with_row_index("edge").with_columns(used=blocks["end"].gather(edges["dst"]))
    return _with_nameless(edges, nameless.sort("arrived")).drop("edge", "used")


def _between_blocks(profile: Profile, blocks: pl.DataFrame) -> pl.DataFrame:
    """src, dst (rows of `blocks`), src_pass, dst_pass, direction, src_rank, dst_rank and made, of the dependencies with
    both blocks there, in one segment."""
    spans, edges = profile.interpreted.passes["span"].to_numpy(), profile.interpreted.edges
    here = blocks["span"].to_numpy()
    row_of = np.full(int(max(here.max(initial=0), spans.max(initial=0))) + 1, -1, np.int64)
    row_of[here] = np.arange(len(here))
    src, dst = (row_of[spans[edges[name].to_numpy()]] for name in ("src", "dst"))
    segment = blocks["segment"].to_numpy()
    both = np.flatnonzero((src >= 0) & (dst >= 0) & (segment[src] == segment[dst]))
    src, dst, named = src[both], dst[both], edges[both]
    return pl.DataFrame(
        {
            "src": pl.Series(src, dtype=pl.UInt32), "dst": pl.Series(dst, dtype=pl.UInt32),
            "src_pass": named["src"], "dst_pass": named["dst"], "direction": named["direction"],
            "src_rank": blocks["rank"].gather(src), "dst_rank": blocks["rank"].gather(dst),
            "made": blocks["end"].gather(src),
        }
    )  # fmt: skip


def _with_nameless(edges: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Gives edges without a message one of the messages whose passes are unknown: on the same way, the first that was
    sent after the data were made, if it arrived before the block that used them ended."""
    way, times = ["src_rank", "dst_rank", "direction"], ["sent", "received", "arrived"]
    moved = (pl.col("src_rank") != pl.col("dst_rank")) & pl.col("arrived").is_null()
    rest = edges.filter(moved).drop(times).with_columns(since=pl.col("made") - MESSAGE_AFTER_NS).sort("since", "edge")
    numbered = messages.select(*way, *times).with_row_index("message").sort("sent", "message")
    first = rest.join_asof(
        numbered, left_on="since", right_on="sent", by=way, strategy="forward", coalesce=False, check_sortedness=False
    ).filter(pl.max_horizontal("sent", "arrived") <= pl.col("used"))
    first = first.unique("message", keep="first", maintain_order=True).select("edge", *times)
    joined = edges.join(first, on="edge", how="left", suffix="_found", maintain_order="left")
    filled = [pl.coalesce(name, f"{name}_found").alias(name) for name in times]
    return joined.with_columns(filled).drop(f"{name}_found" for name in times)


def _parts(profile: Profile, steps: pl.DataFrame, blocks: pl.DataFrame, zero: int) -> pl.DataFrame:
    """The parts of collectives; a collective belongs to the last step that began before its last member did."""
    begins = blocks.group_by("step_index", "segment").agg(at=pl.col("start").min())
    if profile.declared.step_zeros is not None:  # more time lies between steps than around the blocks of any
        bounds = profile.spans.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("step")
        middle = (pl.col("start_ns") + pl.col("end_ns").shift().fill_null(pl.col("start_ns"))) // 2
        begins = steps.join(bounds, on="step").select("step_index", "segment", at=middle - zero)
    begins = begins.sort("at", "step_index")
    parts = profile.collectives.lazy().drop_nulls(["start_ns", "end_ns"]).select(
        "op", "group", "sequence", "rank", start=pl.col("start_ns") - zero, end=pl.col("end_ns") - zero
    ).join(profile.ranks.lazy().select("rank"), on="rank", how="semi").collect()  # fmt: skip
    if profile.declared.every_operation:  # the study's tables: each rank reduces these gradients by itself
        alone = pl.col("op") == LN
        parts = parts.with_columns(group=pl.when(alone).then(pl.format("rank {}", "rank")).otherwise("group"))
    key = ["op", "group", "sequence"]
    begun = (
        parts.group_by(key).agg(at=pl.col("start").max()).sort("at", *key, nulls_last=True).with_row_index("collective")
    )
    placed = begun.join_asof(begins, on="at", check_sortedness=False)
    if begins.height:
        first = begins.row(0, named=True)
        placed = placed.with_columns(
            pl.col("step_index").fill_null(first["step_index"]), pl.col("segment").fill_null(first["segment"])
        )
    return parts.join(placed.drop("at"), on=key, nulls_equal=True).sort("collective", "start", "rank")
