"""How ranks count through the sizes of a run: the arrangements that the sizes allow, and the one that fits the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod

import polars as pl

from trace_export.errors import UsageError
from trace_export.model import Declared

BELIEVED_SHARE = 0.75
BELIEVED_RANKS = 4
"""Another arrangement than the usual one is believed if `BELIEVED_SHARE` of the ranks do the work of their stage; if
times had to tell which stage that is, all ranks, and at least `BELIEVED_RANKS`."""
SIZES = ("pp", "tp", "dp", "cp")
REMEDY = "check `pp`, `tp`, `dp` and `cp`"


@dataclass(frozen=True)
class Arrangement:
    """`pp` stages of `per_stage` ranks; `tp` (None: not known) and `cp` of them split the model. `stride` ranks in a
    row are on one stage, and the next ones on the stage after it.

    Example: 8 ranks of pp 2, tp 2 and dp 2. Stride 4 gives the stages 0 0 0 0 1 1 1 1: Megatron-LM's usual order (tp,
    cp, dp, pp) and DeepSpeed's. Stride 2 gives 0 0 1 1 0 0 1 1: Megatron-LM's other order (tp, cp, pp, dp; its option
    use_tp_pp_dp_mapping) and that of Paddle's fleet (python/paddle/distributed/fleet/base/topology.py). A stride in
    between puts a part of dp inside pp, as fleet does with its sharding.
    """

    pp: int
    per_stage: int
    stride: int
    tp: int | None
    cp: int

    @property
    def order(self) -> str:
        """The order of ranks in words, the fastest first."""
        if self.stride == self.per_stage:
            return "tp, cp, dp, pp"
        return "tp, cp, pp, dp" if self.stride == (self.tp or self.stride) * self.cp else "tp, cp, a part of dp, pp, dp"

    @property
    def sizes(self) -> Declared:
        """The known sizes."""
        tp = self.tp
        return Declared(pp=self.pp, tp=tp, cp=self.cp, dp=None if tp is None else self.per_stage // (tp * self.cp))

    def places(self, ranks: pl.Series, origin: str) -> pl.DataFrame:
        """rank, stage, dp, tp, cp (null where tp is not known) and origin of `ranks`."""
        rank, tp = pl.col("rank"), self.tp or 1
        place = rank % self.stride + rank // (self.stride * self.pp) * self.stride
        has_tp, unknown = self.tp is not None, pl.lit(None, pl.Int32)
        return ranks.to_frame("rank").select(
            "rank",
            stage=rank // self.stride % self.pp,
            dp=place // (tp * self.cp) if has_tp else unknown,
            tp=place % tp if has_tp else unknown,
            cp=place // tp % self.cp if has_tp else unknown,
            origin=pl.lit(origin),
        )


@dataclass(frozen=True)
class Seen:
    """The stages (rank, stage, and null or how many come `after`) of some ranks as they are recorded, or as their work
    shows them; `exact`: without times."""

    stages: pl.DataFrame
    exact: bool

    @property
    def enough(self) -> float:
        """Another arrangement than the usual one is believed if this many ranks do the work of their stage."""
        return BELIEVED_SHARE * len(self.stages) if self.exact else max(len(self.stages), BELIEVED_RANKS)

    def fitting(self, arrangement: Arrangement) -> int:
        """How many ranks do the work of their stage, counted from the first stage that was seen, or from the last."""
        stage = arrangement.places(self.stages["rank"], "")["stage"]
        from_last = arrangement.pp - 1 - self.stages["after"].cast(pl.Int64)  # a file may hold any number as a size
        return max(int((stage == counted).sum()) for counted in (self.stages["stage"], from_last))


def arrangements(ranks: pl.Series, sizes: Declared, *, anywhere: bool) -> Sequence[Arrangement]:
    """The arrangements of `ranks` that the `sizes` allow, the usual one first; none where the number of stages does not
    follow from them, unless it may be `anywhere`, and none where they do not divide the ranks.

    The other sizes leave a number of ranks of a stage: this is the size of tp, or of cp if tp is known. If ranks are
    missing at the end, there may be more ranks than were read.
    """
    read = int(ranks.to_numpy().max()) + 1 if len(ranks) else 0
    world = max(read, sizes.world or 0)
    given = prod(size or 1 for size in (sizes.tp, sizes.cp, sizes.dp))
    possible, depths = [], _depths(world, given, sizes, anywhere=anywhere)
    for pp in depths:
        per_stage = max(-(-world // (pp * given)), 1) * given
        whole = sizes.world is not None or len(depths) > 1 or ranks.n_unique() == world > pp * given
        if whole and pp * per_stage != world:
            continue
        left = per_stage // given if sizes.dp else None
        tp = sizes.tp or left or (1 if per_stage == given else None)
        cp = sizes.cp or (left if sizes.tp else None) or 1
        possible += [Arrangement(pp, per_stage, stride, tp, cp) for stride in _strides(per_stage, tp, cp, sizes)]
    return possible


def _depths(world: int, given: int, sizes: Declared, *, anywhere: bool) -> list[int]:
    """The numbers of stages that there may be, the largest first."""
    if sizes.pp:
        return [sizes.pp]
    if sizes.tp and sizes.dp:
        return [max(world // given, 1)]
    return _divisors(world)[::-1] if anywhere else []


def _divisors(number: int) -> list[int]:
    """The divisors of a number, the smallest first. The number may be huge, because a file may hold any number as a
    rank."""
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return [*small, *(number // divisor for divisor in reversed(small) if divisor * divisor != number)]


def _strides(per_stage: int, tp: int | None, cp: int, sizes: Declared) -> list[int]:
    """The possible strides, the usual one first: the whole stage, or, if ranks count through pp before dp, the ranks
    that split the model."""
    inner = (tp or 1) * cp
    between = [inner * times for times in _divisors(per_stage // inner)[:-1]]
    return [*between, per_stage] if sizes.rank_order == "tp-cp-pp-dp" else [per_stage, *between]


def best(possible: Sequence[Arrangement], seen: Seen | None) -> Arrangement:
    """The arrangement in which most ranks do the work that was `seen`: of several the first. The first arrangement with
    the same number of stages is kept unless enough ranks say otherwise."""
    if seen is None or seen.stages.is_empty():
        return possible[0]
    fitting = {arrangement: seen.fitting(arrangement) for arrangement in possible}
    first = max(possible, key=lambda arrangement: fitting[arrangement])
    usual = next(arrangement for arrangement in possible if arrangement.pp == first.pp)
    return first if fitting[first] >= seen.enough else usual


def of_user(ranks: pl.Series, user: Declared, declared: Declared, seen: Seen | None) -> tuple[Arrangement, bool]:
    """The arrangement of the `user`'s sizes, with the `declared` sizes that do not contradict them; and whether it is
    another one than the usual.

    Raises UsageError where the user's sizes do not divide the ranks.
    """
    record = Declared(world=declared.world, rank_order=declared.rank_order)
    of_record = {name: getattr(declared, name) for name in SIZES}
    kept: list[tuple[str, ...]] = [("pp", "tp", "cp"), ("pp",), ("tp", "cp"), ()]
    if all(of_record[name] in (None, size) for name in SIZES if (size := getattr(user, name)) is not None):
        kept.insert(0, SIZES)
    for names in kept:
        sizes = user.or_else(record).or_else(Declared(**{name: of_record[name] for name in names}))
        if possible := arrangements(ranks, sizes, anywhere=True):
            if user.rank_order is not None:
                return possible[0], False
            chosen = best(possible, seen)
            usual = next(arrangement for arrangement in possible if arrangement.pp == chosen.pp)
            return chosen, chosen != usual
    world = max(int(ranks.to_numpy().max()) + 1, declared.world or 0)
    given = ", ".join(f"{name} {size}" for name in SIZES if (size := getattr(user, name)) is not None)
    raise UsageError(f"{world} ranks cannot be divided by {given}", REMEDY)
