"""The meaning of a run's blocks, worked out step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import polars as pl

from trace_export import segments
from trace_export.model import SPAN_ID, Declared, Interpretation, Plan, Profile, Recognition
from trace_export.pipeline import (
    collectives,
    edges,
    evaluations,
    labels,
    late_recordings,
    message_passes,
    messages,
    passes,
    schedule_match,
    stages,
    steps,
    transfers,
)
from trace_export.pipeline.doubles import without_doubles
from trace_export.pipeline.merged_passes import without_merged
from trace_export.pipeline.recording_breaks import at_breaks, where_ranks_lack_one


def interpret(profile: Profile, user: Declared) -> Profile:
    """`profile` as it was read, with everything that follows from the order and the times of its blocks. Times of
    different hosts are never compared, so clocks that disagree do not matter.

    `user`: what the user specified. Raises UsageError when that cannot be.
    """
    return with_messages(interpret_blocks(profile, user))


def interpret_blocks(profile: Profile, user: Declared) -> Profile:
    """The steps of `interpret` up to the pairing of sends and receives. Raises UsageError as it does."""
    profile, windows = segments.apart(profile)
    profile = prepared(profile)
    profile = stages.resolve(profile, user)  # stage and replica of each rank
    profile = _in_windows(profile, windows)
    profile = conclude(profile)  # passes, schedule, placement of the chunks, dependencies between passes
    return transfers.find_peers(profile)  # the other side of each send and receive


def _in_windows(profile: Profile, windows: pl.DataFrame | None) -> Profile:
    """`profile` with the labels of its blocks, window by window: those of its files, and those that lie in one file."""
    recorded = not profile.spans["step"].null_count()
    numbered = segments.restored(_by_segment(_labelled, profile), windows)
    lacking = None if recorded or windows is not None else where_ranks_lack_one(numbered, profile)
    if lacking is None:
        return at_breaks(numbered, recorded=recorded)
    profile, windows = segments.apart(lacking)
    return segments.restored(_by_segment(_labelled, profile), windows)


def _labelled(profile: Profile) -> Profile:
    recorded = not profile.spans["step"].null_count()
    profile = collectives.number(profile)  # one number for the parts of each collective
    profile, undetermined = steps.number(profile)  # training step of each block
    profile = late_recordings.renumbered(profile)
    profile = labels.label(profile, undetermined)  # micro-batch, chunk and phase of each block
    profile = transfers.split_fused(profile)  # kernels that may send, receive or do both
    profile = transfers.label(profile)  # the block that each send and receive belongs to
    return transfers.in_steps(profile) if recorded else profile


def _by_segment(change: Callable[[Profile], Profile], profile: Profile) -> Profile:
    """`profile` changed segment by segment, because the order of blocks holds within a recording."""
    return segments.joined([change(part) for part in segments.cut(profile)], profile)


def prepared(profile: Profile) -> Profile:
    """The first steps of `interpret`, which do not need the ranks' places in the pipeline."""
    profile = without_doubles(profile)  # what was recorded twice counts once
    profile = evaluations.set_apart(profile)  # forwards that are of no training step
    profile = with_ids(without_merged(profile))  # inferred passes that may be two each are left out
    profile = transfers.name_peers(profile)  # ranks for numbers in communicators
    return transfers.with_possible_ends(profile)


def interpret_further(profile: Profile, earlier: Profile) -> Profile:
    """`interpret` for further steps of a run, whose earlier steps were interpreted as `earlier`: its ranks keep their
    stages, and its schedule is the same."""
    profile = with_ids(without_merged(evaluations.set_apart(without_doubles(profile))))
    profile = transfers.name_peers(
        replace(profile, hosts=earlier.hosts, ranks=earlier.ranks, declared=earlier.declared)
    )
    profile = transfers.with_possible_ends(profile)
    return with_messages(transfers.find_peers(conclude(_labelled(profile), earlier.interpreted.recognition)))


def with_messages(profile: Profile) -> Profile:
    """The last steps of `interpret`: sends and receives as messages, with the passes and the micro-batch of each. Only
    messages depend on them."""
    return _by_segment(lambda part: message_passes.link(messages.pair(part)), profile)


def interpret_table(profile: Profile, user: Declared) -> Profile:
    """The same for the blocks of a span table: they have their labels already, those of evaluations no step."""
    profile = evaluations.of_no_step(profile)
    return conclude(at_breaks(stages.resolve(with_ids(collectives.number(profile)), user)))


def interpret_model(profile: Profile, plan: Plan) -> Profile:
    """The same for the simulated run of a schedule."""
    return conclude(profile, Recognition(plan, certainty="exact", distance=0.0))


def with_ids(profile: Profile) -> Profile:
    """`profile` with `spans.id`: the blocks numbered in their order."""
    numbers = pl.int_range(pl.len(), dtype=SPAN_ID).alias("id")
    return replace(profile, spans=profile.spans.with_columns(numbers))


def conclude(profile: Profile, recognition: Recognition | None = None) -> Profile:
    """`profile` with its `interpretation`, and the schedule in `declared`; each of these facts is worked out here and
    nowhere else. `recognition`: the schedule if it is known, as for a simulated run.

    Needs `spans.id`, and stage and replica of the ranks.
    """
    made = passes.passes_of(profile)
    schedule = recognition
    if schedule is None:
        schedule = schedule_match.with_chunks_in_doubt(schedule_match.recognise(made, profile.declared), profile)
    profile = schedule_match.declare(profile, schedule)
    placement = stages.chunk_placement(profile)
    linked = edges.pass_edges(made, stages.depth(profile.ranks, profile.declared), placement)
    return replace(profile, interpretation=Interpretation(placement, schedule, made.drop("start_ns", "end_ns"), linked))
