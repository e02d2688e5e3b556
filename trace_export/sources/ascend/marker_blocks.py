"""Blocks from the markers of an Ascend rank: pipeline work, without nested ranges, each with its step.

The training script marks its step functions with `mstx.range_start(message, stream)`. Each range exists twice: on the
host, when it was issued, and on the device stream, when the work around it ran. The block is the device's range.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from trace_export.model import INT, SPANS, TEXT, TIME, Note, Schema, conform, empty
from trace_export.sources.shared.timestamps import UNTIMED, is_far, valid_unix_times
from trace_export.tolerances import GRID_NS, OVERLAP_NS

MARKS: Schema = {
    "text": TEXT, "stream": TIME, "start_ns": TIME, "end_ns": TIME, "host_start_ns": TIME, "host_end_ns": TIME,
    "origin": TEXT,
}  # fmt: skip
"""One marker range. Times are the device's where `origin` is `device`, else the host's."""

STEPS: Schema = {"step": INT, "start_ns": TIME, "end_ns": TIME}
"""A training step on the host, as the profiler's schedule numbers it."""

PASSES = ["F", "B", "FB"]
"""Kinds of blocks; without any of them markers name no pipeline."""

CAPTURE: Schema = {"capture": INT}
"""Further columns of tables of several captures: the place of the row's capture among them."""

WORKED: Schema = {"text": TEXT, "stream": TIME, "step": INT, "start_ns": TIME, "end_ns": TIME}
"""A compute kernel; `text` is its type, or at Level0 its name."""

OPTIMIZER = "(?i)adam|applymomentum|applyrmsprop|applyadagrad|lamb|lars|sgd"
"""The names and types of an optimizer's kernels contain one of these."""

_RANGE = ["capture", "stream", "start_ns", "end_ns"]

CLOCK_NOISE_NS = 10_000_000
"""A range may seem to begin this much before it was issued. The profiler places the device's clock by one comparison
with the host's at its start, so that clocks which differ by 100 in a million are 10 ms apart after 100 s."""

EMPTY_NS = 10_000
"""Where no kernels were recorded, a weight-gradient range shorter than this counts as a pop of an empty store."""

NOT_WITHIN = {"F": ["B", "FB"], "B": ["F", "FB"], "W": PASSES}
"""Kinds that no block of a kind holds. It may hold ranges of its kind with another name, which wrap a pass."""

FEW = 4
"""One range of a stream in this many may have wrong times: more are nested on purpose, or of several ranks in one
file."""

KERNEL_NS = 20_000
"""A range that seems to begin or end this long before the end of a kernel of its stream has a wrong time: its marks and
kernels run one after the other."""

LONGER = 1.05
"""A range this many times as long as is typical of its kind is asked whether its end is late."""


class Kernels:
    """The compute kernels of a rank, and what they answer. Of these none were recorded: a range is busy if it is long,
    and no time is known."""

    def all(self) -> pl.DataFrame:
        """As `WORKED`, by start."""
        return empty(WORKED)

    def optimizing(self) -> pl.DataFrame:
        """start_ns and end_ns of those whose names are an `OPTIMIZER`'s."""
        return empty(WORKED)

    def busy(self, ranges: pl.DataFrame) -> pl.Series:
        """For each of `ranges` (stream, start_ns, end_ns) whether a kernel started in it."""
        return ranges["end_ns"] - ranges["start_ns"] >= EMPTY_NS

    def before(self, times: pl.DataFrame) -> pl.Series:
        """For each of `times` (stream, at_ns) when the last kernel that had begun on the stream before ended, null if
        unknown."""
        return pl.repeat(None, times.height, dtype=TIME, eager=True)

    def between(self, ranges: pl.DataFrame) -> pl.Series:
        """For each of `ranges` (start_ns, end_ns), which do not overlap, how long kernels that begin in it run in it,
        on all streams together."""
        return pl.repeat(None, ranges.height, dtype=TIME, eager=True)


def any_starts(starts: pl.Series, ranges: pl.DataFrame) -> pl.Series:
    """Whether one of the `starts` lies in each of `ranges` (start_ns, end_ns)."""
    ordered = starts.drop_nulls().sort()
    first = ordered.search_sorted(ranges["start_ns"], side="left")
    return first < ordered.search_sorted(ranges["end_ns"], side="left")


def sum_between(kernels: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """`Kernels.between` of `kernels` (start_ns, end_ns)."""
    asked = ranges.select(begin="start_ns", until="end_ns").with_row_index("row").sort("begin")
    placed = kernels.drop_nulls().sort("start_ns").join_asof(asked, left_on="start_ns", right_on="begin")
    length = pl.min_horizontal("end_ns", "until") - pl.col("start_ns")
    sums = placed.filter(pl.col("start_ns") < pl.col("until")).group_by("row").agg(length.sum().alias("sum"))
    return asked.join(sums, on="row", how="left").sort("row")["sum"].fill_null(0)


def spans(
    marks: pl.DataFrame, names: pl.DataFrame, steps: pl.DataFrame, kernels: Kernels
) -> tuple[pl.DataFrame, list[tuple[int, Note]]]:
    """The blocks among `marks` (`MARKS`, `CAPTURE`) as in model.SPANS, by start, with the capture as their rank; and
    notes, each with the capture that it is on. `names` (dialects.NAMES) is what the texts mean.

    Where the profiler has no `steps` (`STEPS`, `CAPTURE`) in a capture, markers around whole steps replace them.
    """
    timed = valid_unix_times().fill_null(False)
    placed = pl.col("host_start_ns").is_not_null() | ~is_far(pl.when(timed).then("start_ns")).over("capture")
    valid = marks.select((timed & placed).fill_null(False)).to_series()
    named = marks.filter(valid).join(names, on="text", maintain_order="left")
    marked = named.filter((pl.col("role") == "step") & pl.col("step").is_not_null())
    marked = marked.join(steps, on="capture", how="anti", maintain_order="left")
    steps = pl.concat([steps, conform(marked, {**STEPS, **CAPTURE})])
    blocks = named.filter(pl.col("role") == "block").drop("rank").rename({"step": "marked_step"}).with_row_index("at")
    blocks, unissued = _issued(blocks)
    blocks, misplaced = _placed(blocks, kernels)
    blocks, impossible = _possible(blocks)
    blocks, notes = _worked(_outermost(blocks), kernels)
    blocks, unconfirmed = _on_kernels(blocks, kernels)
    notes = unissued + misplaced + impossible + notes + unconfirmed
    notes += _noted(marks.filter(~valid), Note("times-unusable", "warning", f"ranges {UNTIMED}"))
    blocks = _stepped(blocks, steps)
    outside = blocks.filter(~pl.col("inside"))
    notes += _noted(
        outside, Note("blocks-between-steps", "note", "blocks issued between two steps, assigned to the nearest")
    )
    blocks = blocks.with_columns(rank="capture", marker="text").sort("start_ns", "end_ns", maintain_order=True)
    return conform(blocks, SPANS), notes


def _noted(rows: pl.DataFrame, note: Note) -> list[tuple[int, Note]]:
    """The note for each capture that has such rows, with their number."""
    if rows.is_empty():
        return []
    counts = rows.group_by("capture", maintain_order=True).len()
    return [(capture, replace(note, count=count)) for capture, count in counts.iter_rows()]


def _issued(blocks: pl.DataFrame) -> tuple[pl.DataFrame, list[tuple[int, Note]]]:
    """Without the blocks that began on the device before the host issued them."""
    is_early = (pl.col("origin") == "device") & (pl.col("start_ns") < pl.col("host_start_ns") - CLOCK_NOISE_NS)
    early = blocks.filter(is_early)
    if early.is_empty():
        return blocks, []
    text = "ranges that begin on the device before the host issued them, left out"
    return blocks.filter(~is_early.fill_null(False)), _noted(early, Note("tasks-before-launch", "warning", text))


def _placed(blocks: pl.DataFrame, kernels: Kernels) -> tuple[pl.DataFrame, list[tuple[int, Note]]]:
    """Without the few passes whose times are of another moment: they begin in another order than the host issued them,
    or run into another one and begin while a kernel of their stream runs."""
    stream = ["capture", "stream"]
    passes = blocks.filter(pl.col("kind").is_in(PASSES), pl.col("origin") == "device")
    passes = passes.sort(*stream, pl.coalesce("host_start_ns", "start_ns"), "start_ns", maintain_order=True)
    start, end = pl.col("start_ns"), pl.col("end_ns")
    passes = passes.with_columns(
        early=(start < start.cum_max().shift(1).over(stream) - OVERLAP_NS).fill_null(False),
        late=(start > start.cum_min(reverse=True).shift(-1).over(stream) + OVERLAP_NS).fill_null(False),
        passes=pl.len().over(stream),
    )
    into_next = (end - start.shift(-1).over(stream) > OVERLAP_NS) & (end < end.shift(-1).over(stream))
    into_this = (end.shift(1).over(stream) - start > OVERLAP_NS) & (end.shift(1).over(stream) < end)
    odd = passes.filter(pl.any_horizontal("early", "late", into_next, into_this))
    if odd.is_empty():
        return blocks, []
    odd = odd.with_columns(begun=kernels.before(odd.select(*stream, at_ns=start - GRID_NS)))
    early_ones, late_ones = (pl.col(name).sum().over(stream) for name in ("early", "late"))
    moved = pl.when(early_ones <= late_ones).then("early").otherwise("late")
    odd = odd.filter(moved | (pl.col("begun") - start > KERNEL_NS))
    odd = odd.filter((pl.len() * FEW <= pl.col("passes")).over(stream))
    text = (
        "ranges in another order than they were issued in, or that begin while a kernel of their stream runs, left out"
    )
    notes = _noted(odd, Note("times-unusable", "warning", f"passes marked at wrong times: {text}"))
    return blocks.join(odd, on="at", how="anti", maintain_order="left"), notes


def _on_kernels(blocks: pl.DataFrame, kernels: Kernels) -> tuple[pl.DataFrame, list[tuple[int, Note]]]:
    """The passes as the kernels of their streams confirm them: the few that are longer than others of their kind
    because nothing ran at their end are cut where their last kernel ended. The few that begin or end while a kernel
    runs, or hold none, are left out: their times are of another moment."""
    stream, alike = ["capture", "stream"], ["capture", "kind", "like"]
    length = pl.col("end_ns") - pl.col("start_ns")
    passes = blocks.filter(pl.col("kind").is_in(PASSES), pl.col("origin") == "device")
    if passes.is_empty():
        return blocks, []
    passes = passes.with_columns(like=pl.col("text").str.replace_all(r"\d+", ""), passes=pl.len().over(stream))
    passes = passes.with_columns(extra=length - length.median().over(alike))
    ended = kernels.before(passes.select(*stream, at_ns=pl.col("end_ns") - GRID_NS))
    passes = passes.with_columns(ended=ended, idle=passes["end_ns"] - ended)
    long = pl.col("extra") > pl.max_horizontal((LONGER - 1) * (length - pl.col("extra")), OVERLAP_NS)
    late = passes.filter(
        long, pl.col("ended") > pl.col("start_ns"), pl.col("idle") > pl.max_horizontal(pl.col("extra") / 4, OVERLAP_NS)
    )
    holds_none = (pl.col("ended") <= pl.col("start_ns")).fill_null(pl.col("ended").is_not_null().any().over(stream))
    empty_ones = passes.filter(holds_none)
    empty_ones = empty_ones.filter(~kernels.busy(empty_ones.select(_RANGE))) if len(empty_ones) else empty_ones
    short = passes.filter(~long, pl.col("ended") > pl.col("start_ns"), pl.col("idle") > OVERLAP_NS)
    running = (
        kernels.before(short.select(*stream, at_ns=pl.col("start_ns") - GRID_NS)) if len(short) else short["ended"]
    )
    cut_off = [passes.filter(pl.col("idle") < -KERNEL_NS), short.filter(running - short["start_ns"] > KERNEL_NS)]
    wrong = pl.concat([empty_ones, *cut_off])
    late, wrong = (rows.filter((pl.len() * FEW <= pl.col("passes")).over(stream)) for rows in (late, wrong))
    text = "ranges that end long after the last kernel in them, unlike others, cut there"
    notes = _noted(late, Note("tasks-past-next", "warning", text))
    text = "passes marked at wrong times: ranges that begin or end while a kernel of their stream runs, or hold none"
    notes += _noted(wrong, Note("times-unusable", "warning", f"{text}, left out"))
    confirmed = blocks.join(wrong, on="at", how="anti", maintain_order="left")
    confirmed = confirmed.join(late.select("at", "ended"), on="at", how="left", maintain_order="left")
    return confirmed.with_columns(end_ns=pl.coalesce("ended", "end_ns")).drop("ended"), notes


def _possible(blocks: pl.DataFrame) -> tuple[pl.DataFrame, list[tuple[int, Note]]]:
    """The blocks that run into one which the host issued after them on the same stream end where that one begins."""
    on_device = pl.col("origin") == "device"
    stream = ["capture", "stream"]
    until = pl.col("end_ns").cum_max().shift(1).over(stream)
    timed = blocks.filter(on_device, pl.col("kind").is_not_null()).sort("start_ns")
    if not timed.select((until - pl.col("start_ns") > OVERLAP_NS).any()).item():
        return blocks, []  # no range runs into another one: most recordings
    timed = blocks.filter(on_device, pl.col("kind").is_not_null())
    issued = timed.filter(pl.col("host_start_ns").is_not_null())
    begins = issued.select(*stream, host_end_ns="host_start_ns", begins="start_ns").sort("host_end_ns")
    after = issued.sort("host_end_ns").join_asof(
        begins, on="host_end_ns", by=stream, strategy="forward", check_sortedness=False
    )
    if timed.height > issued.height:
        after = pl.concat([after, _by_stream(timed.filter(pl.col("host_start_ns").is_null()))])
    late = pl.col("end_ns") - pl.col("begins") > OVERLAP_NS
    cut = after.filter(late, pl.col("begins") > pl.col("start_ns")).select("at", "begins")
    if cut.is_empty():
        return blocks, []
    ended = blocks.join(cut, on="at", how="left", maintain_order="left")
    text = "ranges that end on the device after the next one of their stream began, cut there"
    notes = _noted(ended.filter(pl.col("begins").is_not_null()), Note("tasks-past-next", "warning", text))
    return ended.with_columns(end_ns=pl.coalesce("begins", "end_ns")).drop("begins"), notes


def _by_stream(blocks: pl.DataFrame) -> pl.DataFrame:
    """Those of `blocks`, of which nothing says when they were issued, that end after one of their stream began that
    they cannot hold, with its start as `begins`: the next one where they end while it runs, or see `NOT_WITHIN`."""
    stream = ["capture", "stream"]
    ordered = blocks.sort("start_ns", -pl.col("end_ns")).with_columns(like=pl.col("text").str.replace_all(r"\d+", ""))
    following = pl.when(pl.col("end_ns").shift(-1) > pl.col("end_ns")).then(pl.col("start_ns").shift(-1))
    ordered = ordered.with_columns(
        next=following.over(stream), again=pl.col("start_ns").shift(-1).over(*stream, "like")
    )
    parts = [ordered.filter(~pl.col("kind").is_in([*NOT_WITHIN]))]
    for kind, others in NOT_WITHIN.items():
        other = ordered.filter(pl.col("kind").is_in(others)).select(*stream, "start_ns", begins="start_ns")
        mine = ordered.filter(kind=kind)
        parts.append(mine.join_asof(other, on="start_ns", by=stream, strategy="forward", check_sortedness=False))
    ended = pl.concat(parts, how="diagonal")
    if "begins" not in ended.columns:
        return blocks.clear().with_columns(begins=pl.lit(None, TIME))
    begins = pl.min_horizontal("next", "again", "begins")
    ended = ended.with_columns(begins=begins, past=(pl.col("end_ns") - begins > OVERLAP_NS).fill_null(False))
    return ended.filter(pl.col("past") & _few(pl.col("past"))).select(*blocks.columns, "begins")


def _outermost(blocks: pl.DataFrame) -> pl.DataFrame:
    """Without the blocks that lie inside another of their capture's stream: a fused block marks its parts again.

    Named work outside the pipeline neither hides a block nor is hidden by one.
    """
    stream = [pl.col("capture"), pl.col("stream"), pl.col("origin"), pl.col("kind").is_null()]
    ordered = blocks.sort(*stream, pl.col("start_ns"), -pl.col("end_ns"), maintain_order=True)
    until = pl.col("end_ns").cum_max().shift(1).over(stream)
    return ordered.filter((pl.col("end_ns") > until).fill_null(True) | pl.col("kind").is_null())


def _worked(blocks: pl.DataFrame, kernels: Kernels) -> tuple[pl.DataFrame, list[tuple[int, Note]]]:
    """Without the weight-gradient ranges in which nothing ran: the script also marks pops of an empty store."""
    weights = blocks.filter(kind="W")
    if weights.is_empty():
        return blocks, []
    idle = weights.filter(~kernels.busy(weights.select(_RANGE)))
    notes = _noted(idle, Note("blocks-without-work", "note", "weight-gradient ranges without device work, left out"))
    return blocks.join(idle, on="at", how="anti", maintain_order="left"), notes


def _few(wrong: pl.Expr) -> pl.Expr:
    """Whether few enough ranges of a stream are `wrong` to have wrong times (see `FEW`)."""
    return (wrong.sum() * FEW <= pl.len()).over("capture", "stream")


def _stepped(blocks: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """With the step whose host span holds the block's host range (`inside`), or else begins nearest to it.

    Device times do not decide it: work may run on after the host has gone on to the next step. In a capture without any
    span the marker's own number counts.
    """
    if steps.is_empty():
        return blocks.with_columns(step="marked_step", inside=True)
    since = pl.coalesce("host_start_ns", "start_ns")
    until = pl.coalesce("host_end_ns", since)
    ordered = blocks.with_columns(since=since, until=until).sort("since", maintain_order=True)
    spans = steps.sort("start_ns").select("capture", "step", since="start_ns", begin="start_ns", end="end_ns")
    for name, strategy in (("last", "backward"), ("next", "forward")):
        side = spans.rename({c: f"{c}_{name}" for c in ("step", "begin", "end")})
        ordered = ordered.join_asof(side, on="since", by="capture", strategy=strategy, check_sortedness=False)  # type: ignore[arg-type]
    inside = (pl.col("until") <= pl.col("end_last")).fill_null(False)
    later = pl.col("begin_next") - pl.col("since") < pl.col("since") - pl.col("begin_last")
    step = pl.when(inside | ~later.fill_null(False)).then(pl.coalesce("step_last", "step_next")).otherwise("step_next")
    stepped = pl.col("capture").is_in(steps["capture"].unique().implode())
    return ordered.with_columns(step=pl.when(stepped).then(step).otherwise("marked_step"), inside=inside | ~stepped)
