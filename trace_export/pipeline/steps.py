"""The step of the training run to which a block belongs, if the source does not say it.

Precedence: an optimizer block ends a step; so does a collective in which several stages take part; the first
micro-batch's forward begins one; and a first stage that has done as many backwards as forwards has ended one.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, SPANS, STEP_KEY, TEXT, WORK_KINDS, Note, Profile, conform
from trace_export.ordering import ordered, repeated, stretches
from trace_export.schedules.passes import BACKWARDS, FORWARDS
from trace_export.schedules.words import LETTER


def number(profile: Profile) -> tuple[Profile, pl.Series]:
    """`profile` with `spans.step` filled (from 0) for the ranks without a block that has one; and the ranks for which
    the ends of steps are undetermined, so that all their blocks count as one step, as a note says."""
    if not profile.spans["step"].null_count():
        return profile, pl.Series("rank", [], INT)
    spans = profile.spans.with_row_index("row")
    block = pl.col("kind").is_in([*WORK_KINDS, "OPT"])
    with_step = spans.select(pl.col("rank").filter(block & pl.col("step").is_not_null()).unique())["rank"]
    blocks = spans.drop("step").filter(block, ~pl.col("rank").is_in(with_step.implode()))
    if blocks.is_empty():
        return profile, pl.Series("rank", [], INT)
    blocks = ordered(blocks, "rank", "start_ns", "end_ns")
    steps = _by_optimizer(blocks)
    for rule in (_by_collectives, _by_first_forward):
        steps = rule(profile, blocks) if steps is None else steps
    if steps is None:
        steps = _by_balance(profile, blocks)
    numbered = blocks.select("row", "rank", "kind", step=steps).with_columns(
        pl.col("step").forward_fill().backward_fill().over("rank").cast(INT)
    )
    numbered = _of_replicas(numbered, profile.ranks)
    unknown = numbered.filter(FORWARDS & pl.col("step").is_null()).group_by("rank").len().filter(pl.col("len") > 1)
    if forward_only(spans):  # a pass after the other, which no step ends
        unknown = unknown.clear()
    text = (
        "ranks whose step boundaries are unknown; all their blocks count as one step and get no micro-batch number; "
        "include an earlier stage"
    )
    notes = [Note("step-ends-unknown", "warning", text, count=unknown.height)] if unknown.height else []
    filled = spans.join(numbered.select("row", found="step"), on="row", how="left", maintain_order="left")
    one = pl.when(pl.col("row").is_in(numbered["row"].implode())).then(0)
    filled = filled.with_columns(pl.coalesce("step", "found", one).alias("step")).drop("row", "found")
    return replace(profile, spans=conform(filled, SPANS)).with_notes(notes), unknown["rank"]


def forward_only(spans: pl.DataFrame) -> bool:
    """Whether there are forwards and no backward at all, as in inference."""
    return not spans.select((BACKWARDS | (pl.col("kind") == "W")).any()).item() and bool(
        spans.select(FORWARDS.any()).item()
    )


def with_step_numbers(spans: pl.DataFrame) -> pl.DataFrame:
    """`spans` by rank and time; a block without a step gets the number of optimizers that its rank ran before it, so
    that blocks of different steps are told apart before the steps are numbered."""
    in_order = ordered(spans, "rank", "start_ns", "end_ns")
    if not in_order["step"].null_count():
        return in_order
    update = (pl.col("kind") == "OPT").cast(INT)
    return in_order.with_columns(step=pl.coalesce("step", (update.cum_sum() - update).over("rank")))


def in_fullest(blocks: pl.DataFrame, steps: int) -> pl.Series:
    """Whether each row is a block of work in one of the `steps` fullest steps; of equally full ones the first. Worked
    out by stretches of rows of one step."""
    work = pl.col("kind").cast(TEXT).is_in(WORK_KINDS).fill_null(False)
    runs = stretches(blocks.select(*STEP_KEY, work=work), *STEP_KEY, "work")
    counts = runs.filter("work").group_by(STEP_KEY).agg(blocks=pl.col("len").sum())
    most = counts.sort("blocks", *STEP_KEY, descending=[True, False, False]).head(steps).with_columns(chosen=True)
    marked = runs.join(most, on=STEP_KEY, how="left", nulls_equal=True, maintain_order="left")
    inside = marked.select(pl.col("work") & pl.col("chosen").fill_null(False)).to_series()
    return repeated(inside, marked["len"])


def _of_replicas(numbered: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """`numbered` (row, rank, kind, step, by time). Ranks without steps get those of another rank of their stage, if
    their order of blocks occurs in that of the other rank at exactly one position."""
    if not numbered["step"].null_count():
        return numbered
    letter = LETTER.replace("OPT", "O")  # one for each block
    words = (
        numbered.join(ranks.select("rank", "stage"), on="rank", how="left", maintain_order="left")
        .group_by("rank", "stage", maintain_order=True)
        .agg(letter.str.join("").alias("word"), pl.col("step"), known=pl.col("step").is_not_null().all())
    )
    taken = []
    for rank, stage, word in words.filter(~pl.col("known")).select("rank", "stage", "word").iter_rows():
        replicas = words.filter(pl.col("known") & (pl.col("stage") == stage)).select("word", "step").iter_rows()
        for other, steps in replicas:
            if (at := other.find(word)) >= 0 and at == other.rfind(word):
                taken.append(pl.DataFrame({"rank": rank, "taken": steps[at : at + len(word)]}))
                break
    if not taken:
        return numbered
    nth = pl.int_range(pl.len()).over("rank").alias("nth")
    table = pl.concat(taken).cast({"rank": INT, "taken": INT}).with_columns(nth)
    joined = numbered.with_columns(nth).join(table, on=["rank", "nth"], how="left", maintain_order="left")
    return joined.with_columns(step=pl.coalesce("taken", "step")).drop("taken", "nth")


def _by_optimizer(blocks: pl.DataFrame) -> pl.Series | None:
    """A block after an optimizer block begins the next step. None unless every rank has optimizer blocks."""
    optimizer = pl.col("kind") == "OPT"
    if not blocks.group_by("rank").agg(optimizer.any())["kind"].all():
        return None
    begins = (optimizer.shift(1).over("rank") & ~optimizer).fill_null(False)
    return blocks.select(begins.cum_sum().over("rank"))[:, 0]


def _by_collectives(profile: Profile, blocks: pl.DataFrame) -> pl.Series | None:
    """The sequence number of the next collective of several stages identifies the step, also on a rank whose capture
    lacks a step. None unless some groups' collectives lie between steps only, and say the step of every rank.

    Groups of as many ranks on the same stages count together, one or none for each rank: those of the replicas. A rank
    in none of them (a middle stage, where the first and the last reduce the gradients of the embedding) has the step
    that the first stage of its replica had begun.
    """
    named = profile.collectives.drop_nulls("group")
    placed = named.join(profile.ranks.select("rank", "stage"), on="rank")
    groups = (
        placed.group_by("group")
        .agg(
            pl.col("stage", "rank").unique().sort(), stages=pl.col("stage").n_unique(), ranks=pl.col("rank").n_unique()
        )
        .filter(pl.col("stages") > 1)
        .group_by("ranks", "stage")
        .agg(pl.col("group").sort(), pl.col("rank").list.explode(keep_nulls=False, empty_as_null=False))
        .filter(pl.col("rank").list.n_unique() == pl.col("rank").list.len())
        .sort(pl.col("rank").list.len(), "ranks", "group", descending=[True, True, False])
    )
    for alike, ranks in groups.select("group", "rank").head(8).iter_rows():
        members = blocks.filter(pl.col("rank").is_in(ranks))
        steps = members.select("row", step=_between(members, named.filter(pl.col("group").is_in(alike))))
        numbered = blocks.join(steps, on="row", how="left", maintain_order="left")
        ends = numbered.filter(pl.col("step") < pl.col("step").max().over("rank"))
        open_ends = ends.group_by("rank", "step").agg(forwards=FORWARDS.sum(), backwards=BACKWARDS.sum())
        if not (open_ends["forwards"] > open_ends["backwards"]).any():
            filled = _begun_by_first_stages(numbered, profile.ranks)
            if not filled.null_count():
                return filled
    return None


def _between(blocks: pl.DataFrame, collectives: pl.DataFrame) -> pl.Series:
    """The number of the gap between `collectives` (of one group for each rank) that each block lies in, the same on all
    ranks of the group; and of all groups, if their sequence numbers are alike.

    Example: rank 0 has F B c4 F B c5, rank 1, whose capture begins later, F B c5. The collectives 4 and 5 end the steps
    0 and 1, so that all blocks of rank 1 are of step 1.
    """
    groups = collectives.select("rank", "group").unique()
    numbered = collectives.select("rank", "sequence", start_ns="start_ns").sort("start_ns")
    rows = blocks.select("row", "rank", "start_ns").join(groups, on="rank").sort("start_ns")
    after = rows.join_asof(
        numbered.rename({"sequence": "next"}), on="start_ns", by="rank", strategy="forward", check_sortedness=False
    )
    both = after.join_asof(
        numbered.rename({"sequence": "last"}), on="start_ns", by="rank", strategy="backward", check_sortedness=False
    )
    keys = both.select("group", "next").drop_nulls().unique().sort("next").with_columns(key="next")
    # A capture that ends before its step's collective: the step is the one whose collective the others have next.
    cut = both.with_columns(next=pl.coalesce("next", pl.col("last") + 1, pl.lit(0, pl.Int64))).sort("next")
    keyed = cut.join_asof(keys, on="next", by="group", strategy="forward", check_sortedness=False).select(
        "row", "group", key=pl.coalesce("key", "next")
    )
    alike = keyed["key"].n_unique() < len(keyed.select("group", "key").unique())  # some number occurs in two groups
    rank = pl.col("key").rank("dense")
    numbered_gaps = keyed.select("row", step=(rank if alike else rank.over("group")).cast(INT) - 1)
    return blocks.select("row").join(numbered_gaps, on="row", maintain_order="left")["step"]


def _begun_by_first_stages(numbered: pl.DataFrame, ranks: pl.DataFrame) -> pl.Series:
    """The step of each block of `numbered` (row, rank, kind, start_ns, step); a block without one gets the last step
    that the first stage of its replica had begun, null if unknown."""
    if not numbered["step"].null_count():
        return numbered["step"]
    placed = numbered.join(ranks.select("rank", "stage", "replica"), on="rank", how="left", maintain_order="left")
    first = placed.filter(pl.col("stage") == pl.col("stage").min())
    return _begun(numbered, first, placed.filter(pl.col("step").is_null() & pl.col("replica").is_not_null()))


def _begun(numbered: pl.DataFrame, first: pl.DataFrame, rest: pl.DataFrame) -> pl.Series:
    """The step of each block of `numbered`. Of one without that is in `rest` it is the step that was going on, by the
    clock, on the stage of its replica that is in `first`, if that stage is not after its own."""
    begins = (
        first.group_by("replica", "step").agg(pl.col("start_ns").min(), begun=pl.col("stage").first())
        .drop_nulls().sort("start_ns")
    )  # fmt: skip
    asked = rest.select("row", "replica", "start_ns", "stage").sort("start_ns")
    timed = asked.join_asof(begins, on="start_ns", by="replica", check_sortedness=False)
    timed = timed.filter(pl.col("stage") >= pl.col("begun")).select("row", timed="step")
    filled = numbered.join(timed, on="row", how="left", maintain_order="left")
    return filled.select(pl.coalesce("step", "timed").cast(INT))[:, 0]


def _by_first_forward(profile: Profile, blocks: pl.DataFrame) -> pl.Series | None:
    """The forward of micro-batch 0 comes first in a step. None unless every forward has its number."""
    if blocks.filter(FORWARDS)["microbatch"].null_count() or blocks.filter(FORWARDS).is_empty():
        return None
    begins = (pl.col("kind") == "F") & (pl.col("microbatch") == 0) & (pl.col("chunk").fill_null(0) == 0)
    count = begins.fill_null(False).cum_sum().over("rank")
    return blocks.select((count - count.first().over("rank").clip(0, 1)).cast(INT))[:, 0]


def _by_balance(profile: Profile, blocks: pl.DataFrame) -> pl.Series:
    """By counts: a stage that is not the last has as many backwards as forwards only when its step is over.

    That gives the blocks of a kind per step, which replicas have in common. A rank whose capture has whole steps only
    counts them; any other takes the step that was going on, by the clock, on the earliest stage of its pipeline that
    could count, if that is no later than its own. Null where no rank could.

    Example: of two stages the first runs F F B F B B F F B F B B. As many backwards as forwards are done after six
    blocks, so a step has three of each, and the fourth forward begins step 1. The second stage runs F B F B …, which
    is even after every backward; cut after F B F it has the steps that the first stage had begun at these times.
    """
    stages = profile.declared.pp
    last = profile.ranks["stage"].max() if stages is None else stages - 1
    columns = ["rank", "stage", "replica"]
    placed = blocks.join(profile.ranks.select(columns), on="rank", how="left", maintain_order="left")
    placed = placed.with_columns(
        forwards=FORWARDS.sum().over("rank"), backwards=BACKWARDS.sum().over("rank"),
        open=(FORWARDS.cast(INT) - BACKWARDS.cast(INT)).cum_sum().over("rank"),
    )  # fmt: skip
    begun = pl.col("open").min().over("rank") >= 0  # else it has a backward whose forward is missing
    balance = placed.filter(pl.col("stage") != last).with_columns(size=FORWARDS.cum_sum().over("rank"))
    leads = (pl.col("kind") == "F").cast(INT).cum_min().sum().over("rank") > 1  # else its start is missing
    sizes = (
        balance.filter((pl.col("open") == 0) & leads & begun).group_by("replica", "rank").agg(pl.col("size").first())
    )
    fits = begun & (pl.col("forwards") % pl.col("size") == 0) & (pl.col("backwards") % pl.col("size") == 0)
    votes = sizes.group_by("replica", "size").len().sort("len", "size")
    size = votes.group_by("replica").agg(pl.col("size").last())
    usual = sizes.group_by("size").len().sort("len", "size")["size"].last() if len(sizes) else None
    placed = placed.join(size, on="replica", how="left", maintain_order="left")
    numbered = placed.with_columns(pl.col("size").fill_null(pl.lit(usual, pl.Int64))).with_columns(
        step=pl.when(fits & pl.col("kind").is_in(["F", "B"]))
        .then(pl.int_range(pl.len()).over("rank", "kind") // pl.col("size"))
        .cast(INT)
    )
    first = numbered.filter(fits & (pl.col("stage") == pl.col("stage").filter(fits).min().over("replica")))
    return _begun(numbered, first, numbered.filter(pl.col("size").is_not_null() & ~fits))
