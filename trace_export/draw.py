"""What of a run is drawn, and its chart: tracks, slices, arrows, counters, and what analysis and theory add to them.

What only some runs draw is imported when they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from trace_export.analysis.bubbles import Bubbles
from trace_export.analysis.clock_words import clock_texts
from trace_export.chart.block_names import block_name, has_chunks
from trace_export.chart.chart import Chart
from trace_export.chart.colours import idle_seed
from trace_export.chart.critical_path import PathOverlay
from trace_export.chart.layout import ChartOptions, Overlay, lay_out
from trace_export.chart.size import drawn_ranks
from trace_export.choices import Detail
from trace_export.clocks.apply import task_batches
from trace_export.model import INT, SPANS, STEP_KEY, Profile, conform
from trace_export.options import Drawing
from trace_export.pipeline.edges import drawable_edges
from trace_export.schedules.catalogue import TITLES
from trace_export.selection import Selection
from trace_export.steps.recorded import recorded

if TYPE_CHECKING:
    from trace_export.analysis.compare import Comparison
    from trace_export.analysis.explanation import Explanation


@dataclass(frozen=True)
class Other:
    """Another run, which is drawn below the first one: its bubbles, what both runs are called, and how they differ."""

    measured: Bubbles
    names: tuple[str, str]
    comparison: Comparison | None = None


@dataclass(frozen=True)
class Content:
    """What of a run is drawn and written.

    `measured`: the bubbles of a profile, which is the `part` of the run that was chosen. `detail`: the device tasks
    that it has. `explanation`: that of the run, where its critical path is drawn. `frames`: what makes each table
    besides the blocks.
    """

    measured: Bubbles
    part: Selection = Selection()
    detail: Detail = "spans"
    explanation: Explanation | None = None
    other: Other | None = None
    frames: Mapping[str, Callable[[], pl.DataFrame]] = field(default_factory=dict)

    @property
    def profile(self) -> Profile:
        return self.measured.profile


def draw(content: Content, drawing: Drawing, *, for_picture: bool = False) -> Chart:
    """The chart of what is drawn. `for_picture` as in `ChartOptions`."""
    profile, other = content.profile, content.other
    return lay_out(
        profile,
        ChartOptions(
            tracks=drawing["tracks"],
            detail=content.detail,
            color_by=drawing["color_by"],
            runs=None if other is None else other.names,
            other=None if other is None else other.measured.profile,
            clocks=clock_texts(profile),
            device_tasks=partial(task_batches, profile),
            edges=None if for_picture else drawable_edges(profile)[0],
            for_picture=for_picture,
            step_arguments=_step_arguments(content.measured.steps),
            overlays=tuple(_overlays(content, drawing)),
            path=_drawn_path(content),
        ),
    )


def _overlays(content: Content, drawing: Drawing) -> Iterator[Overlay]:
    profile = content.profile
    if drawing["bubbles"]:
        of_tracks = pl.col("rank").is_in(drawn_ranks(profile, "stage"))
        idle = content.measured.slices.filter(of_tracks).with_columns(idle_seed(drawing["color_by"]))
        yield Overlay("stage {} · idle", idle)
    if drawing["model"] and (plan := profile.interpreted.recognition.named) is not None:
        from trace_export.analysis.theory import modelled_blocks

        model = conform(modelled_blocks(profile), SPANS | {"stage": INT}).drop("id")
        named = model.with_columns(block_name(has_chunks(profile.spans)))
        yield Overlay(f"stage {{}} ({TITLES[plan.name]}, model)", named)
    if content.other is not None:
        from trace_export.chart.comparison import overlay_of

        yield overlay_of(content.other.measured.profile, content.other.names[1])


def _drawn_path(content: Content) -> PathOverlay | None:
    """The path of the steps that the profile has blocks of."""
    from trace_export.analysis.transfer_split import block_inputs

    if content.explanation is None:
        return None
    parts, slack = path_parts(content, content.explanation), content.explanation.path.slack
    return PathOverlay(parts, slack.select("id", "slack_ns"), block_inputs(recorded(content.measured.whole)))


def path_parts(content: Content, explanation: Explanation) -> pl.DataFrame:
    """The parts of the critical path in the steps that are drawn."""
    drawn = content.profile.spans
    return explanation.path.parts.join(drawn, on=STEP_KEY, how="semi", nulls_equal=True, maintain_order="left")


def _step_arguments(steps: pl.DataFrame) -> pl.DataFrame:
    """What each of the `steps` (`Bubbles.steps`) says of itself: its times and its bubble, and where some are not
    whole, that it is not."""
    marks = [] if steps["whole"].all() else [pl.when(~pl.col("whole")).then(pl.lit("no")).alias("whole")]
    ms = [(pl.col(f"{what}_ns") / 1e6).alias(f"{what} ms") for what in ("step", "pipeline")]
    return steps.select("run", "step", *ms, (100 * pl.col("bubble")).alias("bubble %"), *marks)
