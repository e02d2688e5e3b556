"""The schedules that the program knows: one row each, with the generator of its order and what it asks of the numbers.

`docs/adding-a-schedule.md` shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trace_export.errors import UsageError
from trace_export.model import Placement
from trace_export.schedules import orders
from trace_export.schedules.orders import Order

Rule = Callable[[int, int], str]
"""(stages, micro-batches) → what the schedule needs instead, "" where it takes these numbers."""


def _any_size(stages: int, microbatches: int) -> str:
    return ""


def _at_least(per_stage: int) -> Rule:
    """Every stage is busy with `per_stage` micro-batches at once."""

    def rule(stages: int, microbatches: int) -> str:
        return "" if microbatches >= per_stage * stages else f"at least {per_stage * stages} micro-batches"

    return rule


def _two_directions(stages: int, microbatches: int) -> str:
    if stages % 2:
        return "an even number of stages"
    enough = microbatches % 2 == 0 and microbatches >= 2 * stages
    return "" if enough else f"an even number of at least {2 * stages} micro-batches"


def _whole_rounds(stages: int, microbatches: int) -> str:
    rounds = max(1, microbatches // stages)
    return f"a multiple of {rounds} micro-batches" if microbatches % rounds else ""


def _one_round(stages: int, microbatches: int) -> str:
    return "" if microbatches == stages else f"exactly {stages} micro-batches"


def _by_stages(stages: int, microbatches: int) -> int:
    """Megatron-LM's group, unless microbatch_group_size_per_vp_stage says another."""
    return stages


def _by_rounds(stages: int, microbatches: int) -> int:
    """torch's group: the micro-batches divided into as many rounds as fit whole pipelines."""
    return microbatches // max(1, microbatches // stages)


@dataclass(frozen=True)
class Row:
    """A schedule.

    `order` generates the blocks of a rank. `chunks` per rank, at least these where `many_chunks`. `group`: how many
    micro-batches go through a chunk before the next has its turn. `rule` says which numbers the schedule takes.
    `splits_from`: from how many stages on weight gradients are blocks of their own, None: never.
    `same_without_weights`: the schedule it cannot be distinguished from where weight gradients are not recorded.
    `variant`: one framework's own form of a schedule, which is recognised but not suggested to others;
    `only_when_short`: its order is one of its own only in steps of as many micro-batches as stages.
    `last_weight_first`: the weight gradient of the last micro-batch runs before the others.
    """

    title: str
    order: Order
    aliases: tuple[str, ...] = ()
    placement: Placement = "loop"
    chunks: int = 1
    many_chunks: bool = False
    group: Callable[[int, int], int] = _by_stages
    rule: Rule = _any_size
    splits_from: int | None = None
    same_without_weights: str | None = None
    variant: bool = False
    only_when_short: bool = False
    last_weight_first: bool = False


CATALOGUE: dict[str, Row] = {
    "gpipe": Row("GPipe", orders.gpipe, aliases=("FThenB", "AFAB")),
    "1f1b": Row("1F1B", orders.one_f_one_b(orders.following), aliases=("PipeDream-Flush",)),
    "eager-1f1b": Row("Eager 1F1B", orders.one_f_one_b(orders.twice_following), aliases=("eager",)),
    "interleaved": Row(
        "Interleaved 1F1B",
        orders.one_f_one_b(orders.interleaved_warm_up),
        aliases=("VPP", "Megatron"),
        chunks=2,
        many_chunks=True,
    ),
    "zb-h1": Row(
        "ZB-H1",
        orders.zero_bubble(orders.following, orders.preceding),
        aliases=("ZB1P",),
        splits_from=1,
        same_without_weights="1f1b",
    ),
    "zb-h2": Row(
        "ZB-H2",
        orders.zero_bubble(orders.twice_following, orders.twice_preceding),
        aliases=("ZB2P",),
        splits_from=1,
        same_without_weights="eager-1f1b",
    ),
    "zb-v": Row("ZB-V", orders.zb_v, aliases=("ZBV-zero-bubble",), placement="vee", chunks=2, splits_from=1),
    "dualpipe": Row("DualPipe", orders.dualpipe, placement="both", chunks=2, rule=_two_directions, splits_from=1),
    "dualpipev": Row("DualPipeV", orders.dualpipev, placement="vee", chunks=2, rule=_at_least(2), splits_from=1),
    "interleaved-zb1p": Row(
        "Interleaved ZB1P",
        orders.zero_bubble(orders.interleaved_zb1p_warm_up, orders.preceding),
        aliases=("interleaved-zero-bubble",),
        chunks=2,
        many_chunks=True,
        group=_by_rounds,
        rule=_whole_rounds,
        splits_from=1,
    ),
    "zbh1-paddle": Row(
        "ZBH1 (Paddle)",
        orders.zbh1_paddle,
        rule=_at_least(1),
        splits_from=2,
        same_without_weights="1f1b",
        variant=True,
        last_weight_first=True,
    ),
    "interleaved-paddle": Row(
        "Interleaved 1F1B (Paddle)",
        orders.one_f_one_b(orders.interleaved_paddle_warm_up),
        aliases=("VPP-Paddle",),
        chunks=2,
        many_chunks=True,
        rule=_at_least(1),
        variant=True,
        only_when_short=True,
    ),
    "interleaved-split-paddle": Row(
        "Interleaved, split backward (Paddle)",
        orders.vpp_split_paddle,
        chunks=2,
        many_chunks=True,
        rule=_one_round,
        splits_from=1,
        same_without_weights="interleaved-paddle",
        variant=True,
    ),
}

TITLES: dict[str, str] = {name: row.title for name, row in CATALOGUE.items()}
"""All schedules with the name that people read."""


def _letters(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


_ALIASES: dict[str, str] = {
    _letters(text): name for name, row in CATALOGUE.items() for text in (name, row.title, *row.aliases)
}


def canonical(name: str) -> str:
    """The key in `CATALOGUE` that `name` means: a key, a title or an alias, whatever its case and dashes.

    Raises UsageError when there is none.
    """
    key = key_of(name)
    if key is None:
        raise UsageError(f'there is no schedule "{name}"', f"choose one of {', '.join(TITLES)}")
    return key


def key_of(name: str | None) -> str | None:
    """`canonical`, or None for a schedule that the catalogue does not have."""
    return _ALIASES.get(_letters(name or ""))


def readable(name: str | None) -> str | None:
    """`name` as people read it (`1F1B`); one that is not known stays as it is."""
    key = key_of(name)
    return name if key is None else TITLES[key]
