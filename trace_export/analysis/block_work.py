"""Why the blocks of slow ranks take longer than those of their peers: kernel by kernel, in parts that add up.

A block is as long as its device tasks that compute or copy (of tasks that overlap the first counts), the communication
that none of these hides, and the gaps. Tasks are compared by their function and not by their names, which differ by
sizes of tiles: all matrix products are one kind, see `KernelNames.family`.

    kind of task        slow            peer            of the difference
    attention           8 ×  10 ms      7 ×  8.75 ms    8/7 as many tasks of most kinds: more layers
    product            33 ×  41 ms     28 ×  35 ms      8/7 of 35 is 40; the rest is one product more
    softmax             1 ×   2 ms      -               more work, too
    gaps                      1 ms          0.2 ms      waiting inside the block

Where most tasks are as many as the peers', and all take 1.3 × as long, that is the cause: clock rate, power, or
contention.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from trace_export.analysis.cause_words import listed, ranks_text
from trace_export.answer import Sentence
from trace_export.inference.kernel_names import PRODUCTS, KernelNames
from trace_export.model import STEP_KEY, WORK_KINDS, Profile
from trace_export.tolerances import PROMPT_NS
from trace_export.units import duration, times

SLOW = ("slow-stage", "slow-replica", "slow-host", "slow-rank")
"""The causes whose blocks are compared with those of peers."""
RANKS, STEPS, CAUSES = 2, 3, 3
"""For a cause this many slow ranks and as many peers are read, in this many steps; for this many causes."""
SAME = 0.02
"""Tasks that take longer by up to this share take as long."""
ALIKE = 0.01
"""Numbers of tasks that differ by up to this share are equal."""
UNIFORM = 0.25
"""All tasks are slower alike if the slowdown of most of their time lies within this share of the usual one."""
SAID, KEPT = 0.05, 0.01
"""A part of at least the first share of the difference is said; of at least the second, it is in the facts."""
NEAR = 4
"""As many products beside a loss may be the output layer in a block."""
ONE = 0.5
"""If the longest gap has this share of all gaps of a block, it is named."""

LOSS = r"(?i)soft_?max|nll_?loss|cross_?entropy|_cce_|argmaxwithvalue|aclnnlog_|caculateloss|masklabelbyindex"
BESIDE_LOSS = (
    r"(?i)elementwise|reduce|functor|index|scatter|copy|fill|triton_|element_mul"
    r"|^(?:exp|log|sub|mul|add|real_?div|div|cast|neg|select|where|zeros|ones|one_?hot|equal|eq|masked?|max|amax|arange|"
    r"sum|mean|ge|lt|logical_?\w+)(?:s|like|v\d|d|imum)*(?:_kernel\w*)?$"
)
"""Short names of elementwise work and reductions: a loss that is not fused consists of these."""
EMBEDDING = r"(?i)embedding|vectorized_gather|gatherv2|indexselect"
NUMBERED = r"(?i)\blayers?(?:-[a-z]+)?[/.](\d+)\b"
"""The number of a layer in the name of a task, as in graphs of MindSpore: `Default/layers-CellList/3-Layer/MatMul`."""
_ACLNN = re.compile(r"aclnn[A-Za-z0-9]+_(?:[A-Za-z0-9]+_)?([A-Za-z0-9]+)$")


class Asked(NamedTuple):
    """The ranks that are compared for the cause in a row of the causes: the `slow` ones and their `peers`."""

    row: int
    slow: list[int]
    peers: list[int]


class Part(NamedTuple):
    """A part of the difference, in a step: `what` it is (`layers`, `loss`, `output`, `embedding`, `more`, `slower`,
    `kernel`, `gaps`, `communication`), in words, and the `kernel` in which it is, if it is one."""

    what: str
    ns: float
    text: str
    kernel: str | None = None


@dataclass(frozen=True)
class _Side:
    """What the blocks of some ranks hold. `blocks`: key, blocks (of a rank in a step), before (the task that ends the
    longest gap), and as means of a block length_ns, idle_ns, moved_ns (communication that no work hides) and pause_ns
    (the longest gap). `work`: key, family, name, near (see `_near_loss`), count, ns, as means of a block."""

    blocks: pl.DataFrame
    work: pl.DataFrame


def asked(causes: pl.DataFrame, profile: Profile) -> tuple[list[Asked], pl.DataFrame]:
    """Which ranks are compared for the first causes of `explanation.CAUSES` that are slow blocks, and the blocks of the
    steps in which they are compared."""
    rows = [(n, row) for n, row in enumerate(causes.iter_rows(named=True)) if row["code"] in SLOW and row["sentence"]]
    of_stage = {rank for _, row in rows for rank in row["ranks"] if row["code"] == "slow-stage"}
    apart = {rank for _, row in rows for rank in row["ranks"] if row["code"] != "slow-stage"}
    drawn = profile.ranks_with_blocks.sort("replica", "rank")
    wanted = []
    for n, row in rows[:CAUSES]:
        first = drawn.filter(pl.col("rank").is_in(row["ranks"])).head(1)
        others = drawn.filter(~pl.col("rank").is_in([*apart, *row["ranks"]]))
        if first.is_empty() or others.is_empty():
            continue
        stage, replica = first.select("stage", "replica").row(0)
        slow = drawn.filter(pl.col("rank").is_in(row["ranks"]), pl.col("stage") == stage)["rank"].to_list()
        peers = others.filter(stage=stage) if row["code"] != "slow-stage" else others.clear()
        if peers.is_empty():
            others = others.filter(~pl.col("rank").is_in(list(of_stage)))
            last = drawn["stage"].max()
            middle = others.filter((pl.col("stage") > 0) & (pl.col("stage") < last))
            peers = (others if middle.is_empty() else middle).sort(pl.col("replica") != replica, "rank")
        if len(peers):
            wanted.append(Asked(n, slow[:RANKS], peers["rank"].to_list()[:RANKS]))
    return wanted, _some_steps(profile, [row for _, row in rows])


def _some_steps(profile: Profile, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """The blocks of successive steps that count, if there are any, around the step that the first cause costs most.
    Times of the host are not those of the device."""
    blocks = profile.spans.filter(pl.col("kind").is_in(WORK_KINDS) & pl.col("origin").ne_missing("host"))
    steps = blocks.group_by(STEP_KEY).agg(pl.col("start_ns").min()).sort("start_ns")
    counted = steps.join(
        profile.steps.filter("counts"), on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left"
    )
    steps = steps if counted.is_empty() else counted
    at = next((i for row in rows for i, key in enumerate(steps.select(STEP_KEY).rows())
               if key == (row["run"], row["step"])), len(steps) // 2)  # fmt: skip
    first = max(min(at - STEPS // 2, len(steps) - STEPS), 0)
    return blocks.join(steps[first : first + STEPS], on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")


def sentence(
    asked: Asked, cause: Mapping[str, Any], blocks: pl.DataFrame, tasks: Mapping[int, pl.DataFrame], then: str
) -> Sentence:
    """What the blocks of the slow ranks have and those of their peers have not. `tasks`: the device tasks of the ranks
    (`model.KERNELS`); `then`: the next step of the cause itself."""
    facts: dict[str, Any] = {"cause": cause["code"], "ranks": asked.slow, "peers": asked.peers}
    sides = []
    for ranks in (asked.slow, asked.peers):
        here = blocks.filter(pl.col("rank").is_in(ranks))
        made = {rank: rank_tasks for rank in ranks if (rank_tasks := tasks.get(rank)) is not None and rank_tasks.height}
        if here.is_empty() or len(made) < len(ranks) or (side := _side(here, made)).work.is_empty():
            text = (
                f"Why its blocks are slow cannot be said: no device tasks of {ranks_text(ranks)} are recorded in them."
            )
            return Sentence("slow-blocks-unknown", facts, text)
        sides.append(side)
    slow, peer = sides
    total = _difference(slow, peer)
    facts |= {"steps": blocks["step"].unique().drop_nulls().sort().to_list(), "more_ns": total}
    who = f"The blocks of {ranks_text(asked.slow)}"
    if total <= 0:
        return Sentence("slow-blocks-unknown", facts, f"{who} take no longer in the steps that were compared.")
    parts = sorted(parts_of(slow, peer), key=lambda part: -abs(part.ns))
    large = [part for part in parts if abs(part.ns) >= KEPT * total]
    rest = total - sum(part.ns for part in large)
    facts["parts"] = [*({"what": part.what, "kernel": part.kernel, "ns": part.ns} for part in large),
                      {"what": "rest", "kernel": None, "ns": rest}]  # fmt: skip
    said = [part for part in large if abs(part.ns) >= SAID * total]
    than = f"than those of {ranks_text(asked.peers)}"
    text = f"{who} take {duration(total)} more in a step {than}: {listed([part.text for part in said])}."
    return Sentence("slow-blocks", facts, text, _next(parts, cause, then))


def _side(blocks: pl.DataFrame, tasks: Mapping[int, pl.DataFrame]) -> _Side:
    of_blocks, of_tasks = [], []
    for rank, rank_tasks in tasks.items():
        here = blocks.filter(rank=rank).sort("start_ns").with_row_index("block")
        here = here.with_columns(
            key=pl.format("{} {}", "kind", pl.col("chunk").fill_null(0)),
            length_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
        moves = pl.col("category") == "communication"
        work = _without_moves(_swept(_placed(here, rank_tasks.filter(~moves))), rank_tasks.filter(moves))
        gaps = work.group_by("block").agg(
            worked=pl.col("own_ns").sum(), moved=pl.col("moved_ns").sum(), pause_ns=pl.col("gap_ns").max(),
            before=pl.col("name").sort_by("gap_ns").last().cast(pl.String),
        )  # fmt: skip
        filled = here.join(gaps, on="block", how="left")
        of_blocks.append(filled.with_columns(pl.col("worked", "moved", "pause_ns").fill_null(0), rank=pl.lit(rank)))
        told = work.with_columns(pl.col("name").cast(pl.String), rank=pl.lit(rank))
        of_tasks.append(told.join(here.select("block", "key"), on="block"))
    every, done = pl.concat(of_blocks), pl.concat(of_tasks)
    steps = every.select(*STEP_KEY, "rank").n_unique()
    means = every.group_by("key").agg(
        blocks=pl.len() / steps, length_ns=pl.col("length_ns").mean(), pause_ns=pl.col("pause_ns").mean(),
        idle_ns=(pl.col("length_ns") - pl.col("worked") - pl.col("moved")).mean(), moved_ns=pl.col("moved").mean(),
        before=pl.col("before").drop_nulls().mode().sort().first(),
    )  # fmt: skip
    names = done["name"].unique()
    family = pl.DataFrame({"name": names, "family": KernelNames(names).family})
    placed = _near_loss(done.join(family, on="name"))
    sums = placed.group_by("key", "family", "name", "near").agg(count=pl.len(), ns=pl.col("own_ns").sum())
    number = every.group_by("key").agg(number=pl.len())
    per = sums.join(number, on="key").with_columns(pl.col("count") / pl.col("number"), pl.col("ns") / pl.col("number"))
    return _Side(means, per.drop("number"))


def _near_loss(tasks: pl.DataFrame) -> pl.DataFrame:
    """With `near`: 1 for the product of a block that is next to a task of the loss, 2 for the second, and so on up to
    `NEAR`; null for all others, and where a block has products on both sides of the loss: then its backward is in it,
    too, and the products of that are elsewhere."""
    of, at = ("rank", "block"), pl.int_range(pl.len())
    loss = pl.when(pl.col("name").str.contains(LOSS)).then(at)
    sides = {"since": at - loss.forward_fill().over(of), "until": loss.backward_fill().over(of) - at}
    sided = tasks.sort(*of, "start_ns").with_columns(**sides)
    product = pl.col("family") == PRODUCTS
    both = ((product & pl.col("since").is_not_null()).any() & (product & pl.col("until").is_not_null()).any()).over(of)
    apart = pl.when(product & ~both).then(pl.min_horizontal("since", "until"))
    sided = sided.with_columns(near=apart.rank("ordinal").over(of))
    return sided.with_columns(pl.when(pl.col("near") <= NEAR).then("near"))


def _placed(blocks: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """The tasks whose middle lies in one of the blocks, which are sorted: `block`, their times cut to it."""
    middle = (pl.col("start_ns") + pl.col("end_ns")) // 2
    of = blocks.select("block", "length_ns", begin="start_ns", until="end_ns")
    timed = tasks.drop_nulls("category").with_columns(middle=middle).sort("middle")
    placed = timed.join_asof(of, left_on="middle", right_on="begin").filter(pl.col("middle") <= pl.col("until"))
    return placed.with_columns(pl.max_horizontal("start_ns", "begin"), pl.min_horizontal("end_ns", "until"))


def _swept(tasks: pl.DataFrame) -> pl.DataFrame:
    """With `own_ns`, the part of each task that no earlier task of its block covers, and `gap_ns`, the time before it
    in which none runs. Their sum is the block up to the last end."""
    before = pl.col("end_ns").cum_max().shift(1).over("block")
    ordered = tasks.sort("block", "start_ns", "end_ns").with_columns(before_ns=pl.coalesce(before, "begin"))
    start, until = pl.max_horizontal("start_ns", "before_ns"), pl.col("before_ns")
    return ordered.with_columns(
        own_ns=(pl.col("end_ns") - start).clip(lower_bound=0), gap_ns=(pl.col("start_ns") - until).clip(lower_bound=0)
    )


def _without_moves(work: pl.DataFrame, moves: pl.DataFrame) -> pl.DataFrame:
    """With `moved_ns`, the communication in the gap before a task, which is taken off the gap, if the task starts when
    the communication ends. Communication that goes on, such as a receive that was posted ahead, is not waited for."""
    ends = moves.sort("end_ns").select(moved_until="end_ns", moved_from="start_ns")
    preceded = work.sort("start_ns").join_asof(ends, left_on="start_ns", right_on="moved_until")
    waited = pl.col("start_ns") - pl.col("moved_until") <= PROMPT_NS
    since = pl.max_horizontal("moved_from", pl.col("start_ns") - pl.col("gap_ns"))
    moved = pl.when(waited).then((pl.col("moved_until") - since).clip(lower_bound=0)).otherwise(0)
    preceded = preceded.with_columns(moved_ns=moved.fill_null(0))
    return preceded.with_columns(pl.col("gap_ns") - pl.col("moved_ns"))


def _difference(slow: _Side, peer: _Side) -> float:
    """How much longer the blocks of a slow rank are in a step."""
    both = slow.blocks.join(peer.blocks, on="key", suffix="_peer")
    return float((both["blocks"] * (both["length_ns"] - both["length_ns_peer"])).sum())


def parts_of(slow: _Side, peer: _Side) -> Iterator[Part]:
    """The parts of the difference, which add up to it."""
    both = slow.blocks.join(peer.blocks, on="key", suffix="_peer")
    kinds = _kinds(slow, peer).join(both.select("key", "blocks"), on="key")
    there = (pl.col("n") > 0) & (pl.col("n_peer") > 0)
    layers = kinds.filter(there).group_by("key").agg(_layers())
    kinds = kinds.join(layers, on="key", how="left").with_columns(pl.col("layers").fill_null(1.0))
    expected = pl.col("layers") * pl.col("n_peer")
    alike = (pl.col("n") - expected).abs() <= pl.max_horizontal(0.1, ALIKE * expected)
    kinds = kinds.with_columns(alike=alike & there, usual=pl.col("blocks") * pl.col("layers") * pl.col("ns_peer"))
    ratio = _slowdown(kinds.filter("alike"))
    kinds = kinds.with_columns(
        layers_ns=pl.col("usual") * (1 - 1 / pl.col("layers")), slower_ns=pl.col("usual") * (ratio - 1),
        now=pl.col("blocks") * pl.col("ns"), rest_ns=pl.col("blocks") * pl.col("ns") - ratio * pl.col("usual"),
    )  # fmt: skip
    if (ns := float(kinds["layers_ns"].sum())) != 0:
        most = kinds.filter("alike", pl.col("layers") != 1).sort("ns", descending=True)
        name, many, few = most.select("name", "n", "n_peer").row(0)
        of = f"{many:.4g} × {short(name)} in a block, the others have {few:.4g}"
        yield Part("layers", ns, f"{_signed(ns)} in {'more' if ns > 0 else 'fewer'} layers ({of})", short(name))
    if (ns := float(kinds["slower_ns"].sum())) != 0:
        yield Part("slower", ns, f"{_signed(ns)} because all kernels take {times(ratio)} as long")
    yield from _more(kinds.filter(~pl.col("alike")), slow.work)
    one = kinds.filter("alike").sort("ns", descending=True).group_by("family", maintain_order=True)
    sums = one.agg(pl.col("rest_ns", "now", "usual").sum(), pl.col("name").first())
    for family, ns, now, usual, name in sums.rows():
        what = f"matrix products ({short(name)})" if family == PRODUCTS else short(name)
        text = f"{_signed(ns)} in {what}, which take{'s' * (family != PRODUCTS)} {times(now / max(usual, 1))} as long"
        yield Part("kernel", ns, text, short(name))
    yield from _gaps(both)


def _kinds(slow: _Side, peer: _Side) -> pl.DataFrame:
    """Of each kind of task in each kind of block: n and ns of both sides, and the name that takes most of the time."""
    sides = []
    for side in (slow, peer):
        order = side.work.sort("ns", descending=True)
        sides.append(
            order.group_by("key", "family", maintain_order=True).agg(
                name=pl.col("name").first(), n=pl.col("count").sum(), ns=pl.col("ns").sum()
            )
        )
    keys = set(slow.blocks["key"]) & set(peer.blocks["key"])
    joined = sides[0].join(sides[1], on=["key", "family"], how="full", coalesce=True, suffix="_peer")
    joined = joined.filter(pl.col("key").is_in(list(keys))).with_columns(name=pl.coalesce("name", "name_peer"))
    return joined.fill_null(0).sort("key", "family")


def _layers() -> pl.Expr:
    """The common ratio in which most kinds have more tasks: these are more layers. 1 if they do not agree."""
    ratio = pl.col("n") / pl.col("n_peer")
    middle = ratio.median()
    agree = ((ratio / middle - 1).abs() <= ALIKE).mean() > 0.5
    return pl.when(agree & ((middle - 1).abs() > ALIKE)).then(middle).otherwise(1.0).alias("layers")


def _slowdown(kinds: pl.DataFrame) -> float:
    """How many times as long all tasks of the same work take, by the middle of their time; 1 if they do not agree, or
    take about as long."""
    timed = kinds.filter(pl.col("ns_peer") > 0).with_columns(
        ratio=pl.col("ns") / pl.col("n") / (pl.col("ns_peer") / pl.col("n_peer")),
        weight=pl.col("blocks") * pl.col("ns_peer"),
    )  # fmt: skip
    if timed.is_empty():
        return 1.0
    ratios, weights = (timed.sort("ratio")[name].to_numpy() for name in ("ratio", "weight"))
    low, ratio, high = np.interp((0.2, 0.5, 0.8), (np.cumsum(weights) - weights / 2) / weights.sum(), ratios)
    agree = max(high - ratio, ratio - low) <= UNIFORM * abs(ratio - 1) + SAME
    return float(ratio) if agree and abs(ratio - 1) > SAME else 1.0


def _more(kinds: pl.DataFrame, work: pl.DataFrame) -> Iterator[Part]:
    """Work of which one side has more; `work` is that of the slow side. If a kernel comes as often as its kind comes
    more often, it is that kernel. Beside a loss that the peers do not have, the products next to it are the output
    layer, for no name tells them from others, and elementwise work and reductions are the loss."""
    short_names = pl.Series([short(name) for name in kinds["name"]], dtype=pl.String)
    extra = kinds.with_columns(
        loss=pl.col("name").str.contains(LOSS), embedding=pl.col("name").str.contains(EMBEDDING),
        product=pl.col("family") == PRODUCTS, beside=short_names.str.contains(BESIDE_LOSS),
    )  # fmt: skip
    more = extra.filter(pl.col("rest_ns") > 0)
    if more["loss"].any():
        of_loss = ~pl.col("product") & ~pl.col("embedding") & (pl.col("loss") | pl.col("beside"))
        loss = float(more.filter(of_loss)["rest_ns"].sum())
        yield Part("loss", loss, f"{duration(loss)} in the loss")
        products = _output(extra.filter("product"), work)
        output, slower = (float(products[of].sum()) for of in ("output_ns", "slower_ns"))
        if output > 0:
            yield Part("output", output, f"{duration(output)} in the output layer")
        if slower != 0:
            yield Part("kernel", slower, f"{_signed(slower)} in the other matrix products", PRODUCTS)
        extra = extra.filter(~pl.col("product") & ((pl.col("rest_ns") <= 0) | ~of_loss))
    if (ns := float(extra.filter("embedding")["rest_ns"].sum())) != 0:
        yield Part("embedding", ns, f"{_signed(ns)} in the embedding")
    rest = extra.filter(~pl.col("embedding")).with_columns(surplus=pl.col("n") - pl.col("layers") * pl.col("n_peer"))
    fits = (pl.col("count") - pl.col("surplus")).abs() <= ALIKE * pl.col("surplus")
    names = work.group_by("key", "family", one="name").agg(pl.col("count", "ns").sum())
    one = names.join(rest, on=["key", "family"]).filter(fits).sort("ns", descending=True)
    one = one.unique(["key", "family"], keep="first").select("key", "family", "one")
    rest = rest.join(one, on=["key", "family"], how="left", maintain_order="left").with_columns(
        name=pl.coalesce("one", "name"), more=pl.col("surplus") * pl.col("blocks")
    )
    for name, ns, count, peer in rest.group_by("family", maintain_order=True).agg(
        pl.col("rest_ns").sum(), pl.col("more").sum(), pl.col("n_peer").sum(), name=pl.col("name").first(),
    ).select("name", "rest_ns", "more", "n_peer").rows():  # fmt: skip
        how = (
            "which the others do not run"
            if peer == 0
            else f"{abs(count):.3g} {'more' if count > 0 else 'fewer'} in a step"
        )
        yield Part("more", ns, f"{_signed(ns)} in {short(name)}, {how}", short(name))


def _output(products: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """output_ns: the time of the products next to the loss in each kind of block, as many as the block has more than
    the peers' block; slower_ns: by how much the other products are longer. Without a loss in the block, all is
    output_ns."""
    many = products.select("key", "blocks", "rest_ns", many=(pl.col("n") - pl.col("layers") * pl.col("n_peer")).round())
    near = work.drop_nulls("near").join(many, on="key").filter(pl.col("near") <= pl.col("many"))
    near = near.group_by("key").agg(output_ns=(pl.col("ns") * pl.col("blocks")).sum())
    outputs = many.join(near, on="key", how="left").with_columns(pl.coalesce("output_ns", pl.col("rest_ns").clip(0)))
    return outputs.select("output_ns", slower_ns=pl.col("rest_ns") - pl.col("output_ns"))


def _gaps(both: pl.DataFrame) -> Iterator[Part]:
    gaps = both.with_columns(
        more=pl.col("blocks") * (pl.col("idle_ns") - pl.col("idle_ns_peer")),
        pause=pl.col("blocks") * (pl.col("pause_ns") - pl.col("pause_ns_peer")),
    )  # fmt: skip
    ns, pause = float(gaps["more"].sum()), float(gaps["pause"].sum())
    text = f"{_signed(ns)} in gaps between kernels"
    if ns > 0 and pause >= ONE * ns:
        before = gaps.sort("pause", descending=True)["before"][0]
        text += f", most of it in one pause of a block, before {short(before)}"
    elif ns > 0:
        text += ", in many small ones (the host launches late)"
    yield Part("gaps", ns, text)
    moved = float((both["blocks"] * (both["moved_ns"] - both["moved_ns_peer"])).sum())
    yield Part("communication", moved, f"{_signed(moved)} in communication that no work hides")


def forwards(profile: Profile) -> pl.DataFrame:
    """The forwards of some steps on the first rank of each stage, with its `stage`."""
    drawn = profile.ranks_with_blocks.drop_nulls("stage")
    first = drawn.sort("replica", "rank").unique("stage", keep="first", maintain_order=True).select("rank", "stage")
    return _some_steps(profile, []).filter(pl.col("kind") == "F").join(first, on="rank", maintain_order="left")


def layers(blocks: pl.DataFrame, tasks: Mapping[int, pl.DataFrame]) -> tuple[tuple[int, ...], str] | None:
    """The layers of each part (chunk a on stage b is part a·P + b) and how they were counted: by their numbers in the
    names of tasks, if no two parts share one; else by the attention kernel that comes equally often in all forwards of
    a part, and in all parts; of several the rarest, because a layer may launch some of them more than once. None if
    there is none."""
    counts, numbers = [], []
    for rank, rank_tasks in tasks.items():
        here = blocks.filter(rank=rank).sort("start_ns").with_row_index("block")
        here = here.with_columns(pl.col("chunk").fill_null(0), length_ns=pl.col("end_ns") - pl.col("start_ns"))
        placed = _placed(here, rank_tasks.filter(pl.col("category") == "compute")).with_columns(
            pl.col("name").cast(pl.String)
        )
        numbered = placed.select("block", number=pl.col("name").str.extract(NUMBERED)).drop_nulls()
        numbers.append(numbered.join(here, on="block").select("chunk", "stage", "number"))
        names = KernelNames(placed["name"].unique())
        kinds = pl.DataFrame({"name": names.texts, "family": names.family}).filter(pl.Series(names.attention_forward))
        counted = placed.join(kinds, on="name").group_by("block", "family").agg(n=pl.len())
        every = here.select("block", "chunk", "stage").join(counted.select("family").unique(), how="cross")
        counts.append(every.join(counted, on=["block", "family"], how="left").with_columns(pl.col("n").fill_null(0)))
    if not counts:
        return None
    whole = blocks.select(pl.col("chunk").fill_null(0), "stage").n_unique()
    named = pl.concat(numbers).unique()
    if named.select("chunk", "stage").n_unique() == whole and named["number"].is_unique().all():
        held = named.group_by("chunk", "stage").len().sort("chunk", "stage")["len"].to_list()
        return tuple(held), "the numbers in the names of kernels"
    parts = pl.concat(counts).group_by("family", "chunk", "stage").agg(n=pl.col("n").min(), most=pl.col("n").max())
    steady = (pl.len() == whole) & (pl.col("n") == pl.col("most")).all() & (pl.col("n") > 0).all()
    kept = parts.group_by("family").agg(steady=steady, sum=pl.col("n").sum()).filter("steady").sort("sum", "family")
    if kept.is_empty():
        return None
    family = kept["family"][0]
    return tuple(parts.filter(family=family).sort("chunk", "stage")["n"].to_list()), short(family)


def short(name: str) -> str:
    """The name of a kernel without template arguments and the decoration of compilers."""
    vendor = _ACLNN.match(name)
    plain = vendor[1] if vendor else re.sub(r"^(?:void )?(?:[\w()]+::)*", "", re.split(r"[<(]", name)[0]) or name
    return plain if len(plain) <= 40 else plain[:39] + "…"


def _signed(ns: float) -> str:
    return duration(ns) if ns >= 0 else f"{duration(-ns)} less"


def _next(parts: Sequence[Part], cause: Mapping[str, Any], then: str) -> str:
    """What to do first, by the largest part; then the next step of the cause itself, if it still fits. `parts`: the
    largest first."""
    loss, output = (sum(part.ns for part in parts if part.what == what) for what in ("loss", "output"))
    who, first = ranks_text(cause["ranks"]), parts[0]
    if first.what in ("loss", "output", "embedding", "layers") and cause["code"] != "slow-stage":
        then = f"move layers from the stage of {who} to the others"
    if loss + output >= abs(first.ns):
        return f"fuse the loss (a fused cross entropy), then {then}" if loss >= output else then
    if first.what == "slower":
        return f"check clock rate, power, temperature and other processes of the devices of {who}"
    if first.what == "gaps":
        return f"profile the CPU of {who} (launches, synchronisation, garbage collection), or launch by graphs"
    if first.what == "more":
        return f"find out what launches {first.kernel} on {who} and not on the others"
    if first.what == "kernel":
        return f"find out why {first.kernel} is slow on {who}: other sizes, another algorithm, or memory"
    return then
