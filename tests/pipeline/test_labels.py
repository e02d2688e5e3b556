"""Numbers from order: what the rules of each schedule say, for whole steps, cut ones and several."""

import random
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.generators import paddle as generate_paddle
from tests.support.clock_runs import Clocks, make
from tests.support.profiles import placed
from tests.support.rows import crossed, examples
from trace_export.model import COLLECTIVES, P2P, RANKS, SPANS, Declared, Profile, conform, empty
from trace_export.pipeline import labels, steps
from trace_export.pipeline.interpret import interpret

Label = tuple[int | None, int | None]


def label(made: Profile) -> Profile:
    """The profile with the steps of its blocks, and their labels."""
    return labels.label(*steps.number(placed(made)))


def one_f_one_b(stages: int, stage: int, microbatches: int) -> str:
    lead = min(stages - stage - 1, microbatches)
    return "F" * lead + "FB" * (microbatches - lead) + "B" * lead


def interleaved(stages: int, stage: int, microbatches: int, chunks: int) -> str:
    total = microbatches * chunks
    lead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    return "F" * lead + "FB" * (total - lead) + "B" * lead


def profile(words: list[list[str]], *, stepped: bool = True, ended: bool = False, **declared: int | str) -> Profile:
    """Ranks 0, 1, … on stages 0, 1, …, each with the words of its steps, a letter for a block of 10 ns.

    `stepped`: the steps are recorded. `ended`: a collective of all stages closes every step.
    """
    blocks, collectives = [], []
    length = 20 * max((len(word) for each in words for word in each), default=0) + 100
    for rank, each in enumerate(words):
        for step, word in enumerate(each):
            for place, letter in enumerate(word):
                start = step * length + 20 * place
                blocks.append({"rank": rank, "step": step if stepped else None, "start_ns": start, "end_ns": start + 10,
                               "kind": {"X": "FB"}.get(letter, letter), "marker": letter})  # fmt: skip
            if ended:
                at = (step + 1) * length - 30
                collectives.append(
                    {
                        "rank": rank,
                        "group": "world",
                        "op": "allReduce",
                        "sequence": 2 * step,
                        "start_ns": at,
                        "end_ns": at + 10,
                    }
                )
    ranks = [{"rank": r, "stage": r, "dp": 0, "tp": 0, "cp": 0} for r in range(len(words))]
    return Profile(
        spans=conform(pl.DataFrame(blocks, schema_overrides={"step": SPANS["step"]}), SPANS),
        ranks=conform(pl.DataFrame(ranks), RANKS),
        collectives=conform(pl.DataFrame(collectives, schema=None if collectives else COLLECTIVES), COLLECTIVES),
        declared=Declared(**{"pp": len(words), **declared}),  # type: ignore[arg-type]
    ).validate()


def numbers(labelled: Profile, rank: int, kind: str, step: int = 0) -> list[Label]:
    rows = labelled.spans.filter((pl.col("rank") == rank) & (pl.col("kind") == kind) & (pl.col("step") == step))
    return rows.sort("start_ns").select("microbatch", "chunk").rows()


FIRST, LAST = "FFBFBFBB", "FBFBFBFB"
"""The orders of 1F1B on two stages with four micro-batches."""


@pytest.mark.parametrize(
    ("steps_of_first", "steps_of_last", "at", "expected"),
    [
        ([FIRST], [LAST], 0, "F0 F1 B0 F2 B1 F3 B2 B3"),
        (["FBFBB", FIRST], [LAST, LAST], 0, "F2 B1 F3 B2 B3"),
        ([FIRST, "F"], [LAST, LAST], 1, "F0"),
        ([FIRST, "FFBFFBB", FIRST], [LAST] * 3, 1, "F0 F1 B0 F2 F3 B2 B3"),
        ([FIRST + "W"], [LAST], 0, "F0 F1 B0 F2 B1 F3 B2 B3 W?"),
        (["FBFFFBBB"], ["FBFFFBBB"], 0, "F0 B0 F1 F2 F3 B1 B2 B3"),
    ],
    ids=["whole", "one place", "whole end", "gap", "order of each kind", "order of appearance"],
)
def test_each_rule_on_its_example(steps_of_first: list[str], steps_of_last: list[str], at: int, expected: str) -> None:
    ended = steps_of_first == ["FBFFFBBB"]
    result = label(profile([steps_of_first, steps_of_last], ended=ended)).spans.filter(rank=0, step=at).sort("start_ns")
    named = result.select(pl.format("{}{}", "kind", pl.col("microbatch").cast(pl.String).fill_null("?")))
    assert " ".join(named.to_series()) == expected


def test_phases_of_one_f_one_b() -> None:
    spans = label(profile([["FFBFBFBB"], ["FBFBFBFB"]])).spans.sort("rank", "start_ns")
    assert spans["phase"].to_list() == ["warm-up", *["steady"] * 6, "cool-down", *["steady"] * 8]


@pytest.mark.parametrize(("stage", "first", "last"), [(3, 3, 12), (3, 1, 8), (3, 4, 7), (2, 3, 9), (1, 4, 9)])
def test_a_truncated_step_is_located_by_the_adjacent_stages(stage: int, first: int, last: int) -> None:
    """A window that fits at several places of its stage's order; on a host of its own it stays open."""
    truth = [b for b in generate_paddle.blocks_of(4, 6, range(1), random.Random(2)) if b.kind != "OPT"]
    of_stage = sorted((b for b in truth if b.rank == stage), key=lambda b: b.start_ns)
    kept = [b for b in truth if b.rank != stage] + of_stage[first:last]
    rows = [
        {"rank": b.rank, "run": 0, "step": 0, "kind": b.kind, "start_ns": b.start_ns, "end_ns": b.end_ns} for b in kept
    ]
    spans = conform(pl.DataFrame(rows), SPANS)
    for host, expected in (("a", [b.microbatch for b in of_stage[first:last]]), ("b", [None] * (last - first))):
        ranks = pl.DataFrame(
            [{"rank": r, "stage": r, "dp": 0, "tp": 0, "cp": 0, "host": host if r == stage else "a"} for r in range(4)]
        )
        labelled = label(Profile(spans=spans, ranks=conform(ranks, RANKS), declared=Declared(pp=4)))
        result = labelled.spans.filter(pl.col("rank") == stage).sort("start_ns")
        assert result["microbatch"].to_list() == expected


def test_an_uncertain_window_stays_open() -> None:
    """The last stage alternates F and B: a part of a lone step may be any part of it."""
    words = [[one_f_one_b(2, 0, 6)], [one_f_one_b(2, 1, 6)[2:-2]]]
    labelled = label(profile(words))
    assert numbers(labelled, 1, "F") == [(None, None)] * 4
    assert numbers(labelled, 0, "F") == [(m, 0) for m in range(6)]
    assert [(n.code, n.count) for n in labelled.notes] == [("microbatch-unknown", 8)]
    certain = label(profile([words[0], [one_f_one_b(2, 1, 6)[2:]]], ended=True))
    assert numbers(certain, 1, "F") == [(m, 0) for m in range(1, 6)]


def test_an_unknown_order_whose_ends_may_be_cut_off_is_not_numbered() -> None:
    """F F B F B B without its first and last block has as many of both. Where a rank has more, the other one is cut."""
    alone = label(profile([["FBFB"], ["BFBF"]]))
    torn = label(profile([["FBFFFBBB"], ["FBBFB"]], ended=True))
    for result in (alone, torn):
        assert result.spans["microbatch"].null_count() == len(result.spans)
        assert [n.code for n in result.notes] == ["schedule-unknown", "microbatch-unknown"]


@pytest.mark.parametrize(("seed", "cut_ms"), crossed(range(12), [60, 150]))
def test_numbers_by_order_of_appearance_are_right_in_cut_captures(seed: int, cut_ms: int) -> None:
    """One or two steps of 1F1B, each rank cut elsewhere: where no order shows which blocks these are, none has one."""
    clocks = Clocks(
        seed=seed, stages=2 + seed % 4, microbatches=3 + seed % 5, steps=1 + seed % 2, cut_ms=cut_ms, offset_us=0
    )  # fmt: skip
    true = make(clocks).profile
    bare = replace(true, spans=true.spans.with_columns(microbatch=pl.lit(None, pl.Int32)), p2p=empty(P2P))
    result = interpret(bare, Declared())
    if "schedule-unknown" in [note.code for note in result.notes]:
        both = result.spans.join(true.spans, on=["rank", "start_ns", "end_ns"], suffix="_true")
        assert both.filter(pl.col("microbatch") != pl.col("microbatch_true")).is_empty()


DUALPIPEV = (
    "F 0", "F 1", "F 2", "F 4", "L 4", "B 4", "W 4", "F 5", "L 5", "X 3 5", "X 6 0", "L 6", "B 6", "X 7 1", "L 7",
    "B 7", "B 2", "B 3",
)  # fmt: skip
"""Stage 0 of 2 with 4 micro-batches, written out from MindSpeed's rules: numbers of forward and backward, chunk 1 from
4 on; L is the backward of the loss head. There are 3 * 4 + 4 * 2 - 2 blocks."""


def dualpipev(window: slice) -> tuple[Profile, list[tuple[str, int, int, int | None, int | None]]]:
    """A profile of the blocks in `window`, forwards with their number, and what their labels are."""
    rows, wanted = [], []
    for place, (letter, *digits) in enumerate(block.split() for block in DUALPIPEV[window]):
        first, second = int(digits[0]), int(digits[1]) if digits[1:] else None
        kind = {"X": "FB", "L": "B"}.get(letter, letter)
        rows.append({"rank": 0, "step": 3, "kind": kind, "start_ns": 20 * place, "end_ns": 20 * place + 10,
                     "microbatch": first if letter in "FX" else None})  # fmt: skip
        pair = (None, None) if second is None else (second % 4, second // 4)
        wanted.append((kind, first % 4, first // 4, *pair))
    spans = conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)
    ranks = conform(pl.DataFrame([{"rank": 0, "stage": 0}]), RANKS)
    return Profile(
        spans=spans, ranks=ranks, declared=Declared("dualpipev", 4, pp=2, numbers_continue=True, overlapped=True)
    ), wanted


def test_dualpipev_whole() -> None:
    given_labels, wanted = dualpipev(slice(None))
    labelled = label(given_labels)
    columns = ["kind", "microbatch", "chunk", "microbatch_b", "chunk_b"]
    assert labelled.spans.select(columns).rows() == wanted
    # A forward's number is recorded; all others follow from the order.
    inferred = labelled.spans.select((pl.col("kind") == "F") == pl.col("labels").is_null())
    assert inferred["kind"].all()
    names = ["warm-up", "interleaved forward", "1b1w1f", "overlap", "1b1overlap", "interleaved backward", "cool-down"]
    counts = dict(labelled.spans.group_by("phase").len().iter_rows())
    assert [counts[name] for name in names] == [2, 2, 4, 3, 3, 2, 2]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 17), st.integers(1, 18))
def test_dualpipev_window(first: int, length: int) -> None:
    """Of any part of a step whatever is labelled is right, and every block between two numbered ones is labelled."""
    given_labels, wanted = dualpipev(slice(first, first + length))
    labelled = label(given_labels).spans
    columns = ["kind", "microbatch", "chunk", "microbatch_b", "chunk_b"]
    numbered = [i for i, (kind, *_) in enumerate(wanted) if kind in ("F", "FB")]
    for place, (ours, expected) in enumerate(zip(labelled.select(columns).rows(), wanted, strict=True)):
        if ours[1] is not None:
            assert ours == expected
        if numbered and numbered[0] <= place <= numbered[-1]:
            assert ours == expected


@pytest.mark.parametrize("lost", range(18))
def test_dualpipev_without_one_block_of_a_step_that_an_optimizer_ends(lost: int) -> None:
    """Which of the last backwards is missing nothing says: they have no number, and a warning counts them."""
    whole, wanted = dualpipev(slice(None))
    optimizer = {"rank": 0, "step": 3, "kind": "OPT", "start_ns": 900, "end_ns": 910}
    kept = whole.spans.filter(pl.int_range(pl.len()) != lost)
    labelled = label(replace(whole, spans=pl.concat([kept, conform(pl.DataFrame([optimizer]), SPANS)])))
    result = labelled.spans.select("kind", "microbatch", "chunk", "microbatch_b", "chunk_b").rows()[:-1]
    pairs = list(zip(result, wanted[:lost] + wanted[lost + 1 :], strict=True))
    assert all(ours == expected for ours, expected in pairs if ours[1] is not None)
    assert sum(ours[1] is not None for ours in result) >= 10
    unknown = sum(ours[1] is None for ours in result if ours[0] == "B")
    assert sum(note.count for note in labelled.notes if note.code == "microbatch-unknown") == unknown


def test_recorded_numbers_are_left_alone() -> None:
    given_labels = profile([["FBFB"]])
    spans = given_labels.spans.with_columns(microbatch=pl.Series([7, 7, 3, 3], dtype=SPANS["microbatch"]))
    before = replace(given_labels, spans=spans)
    assert label(before).spans.equals(placed(before).spans)
    weights = conform(pl.DataFrame([{"rank": 0, "step": 0, "kind": "W", "start_ns": 90, "end_ns": 95}]), SPANS)
    cleared = replace(before, spans=pl.concat([spans, weights]))
    assert label(cleared).spans.equals(placed(cleared).spans)


def test_steps_from_collectives_of_all_stages() -> None:
    """Three steps; rank 1 lacks the first, and numbers the others as rank 0 does."""
    words = [[one_f_one_b(2, 0, 4)] * 3, ["", *[one_f_one_b(2, 1, 4)] * 2]]
    labelled = label(profile(words, stepped=False, ended=True))
    steps = labelled.spans.sort("rank", "start_ns").group_by("rank", maintain_order=True).agg(pl.col("step").unique())
    assert [sorted(s) for s in steps["step"]] == [[0, 1, 2], [1, 2]]
    assert numbers(labelled, 1, "B", step=2) == [(m, 0) for m in range(4)]


@pytest.mark.parametrize("groups", [[[0, 1, 2], [3, 4, 5]], [[0, 2], [3, 5]]], ids=["pipelines", "embedding"])
@pytest.mark.parametrize("apart", [0, 500])
def test_steps_from_collectives_of_replicas(groups: list[list[int]], apart: int) -> None:
    """Each replica reduces among all or among the first and last of its stages; the groups number theirs alike, or
    `apart`. Replica 1 was recorded from its second step on, which shows where the numbers are alike."""
    words = [one_f_one_b(3, stage, 4) for stage in range(3)]
    length, blocks, parts, true = 1000, [], [], []
    for rank in range(6):
        stage, replica = rank % 3, rank // 3
        for step in range(replica, 3):
            for place, letter in enumerate(words[stage]):
                start = step * length + 20 * place + 25 * stage
                blocks.append({"rank": rank, "start_ns": start, "end_ns": start + 10, "kind": letter, "marker": letter})
                true.append(step - (replica if apart else 0))
            for n, group in enumerate(groups):
                if rank in group:
                    at = {"start_ns": (step + 1) * length - 30, "end_ns": (step + 1) * length - 20}
                    of_group = {"group": f"g{n}", "op": "all_reduce", "sequence": apart * n + 10 * step}
                    parts.append({"rank": rank, **at, **of_group})
    ranks = pl.DataFrame({"rank": range(6), "stage": [0, 1, 2] * 2, "replica": [0] * 3 + [1] * 3})
    made = Profile(
        ranks=conform(ranks, RANKS), spans=conform(pl.DataFrame(blocks), SPANS),
        collectives=conform(pl.DataFrame(parts), COLLECTIVES),
    )  # fmt: skip
    numbered, unknown = steps.number(made)
    assert not len(unknown)
    assert numbered.spans["step"].to_list() == true


@pytest.mark.parametrize("read", [1, 2, 3, 4])
def test_steps_from_counts_wherever_the_last_stages_were_not_read(read: int) -> None:
    words = [[one_f_one_b(4, s, 6)] * 3 for s in range(read)]
    labelled = label(profile(words, stepped=False, pp=4))
    expected = [step for _ in range(read) for step in range(3) for _ in range(12)]
    assert labelled.spans.sort("rank", "start_ns")["step"].to_list() == expected


def test_blocks_of_the_last_stage_alone_are_one_step_with_a_note() -> None:
    """Forward, backward, forward, … is what one long step and several short ones look like there."""
    whole = profile([[one_f_one_b(4, s, 6)] * 3 for s in range(4)], stepped=False)
    spans, ranks = (frame.filter(pl.col("rank") == 3) for frame in (whole.spans, whole.ranks))
    labelled = label(replace(whole, spans=spans, ranks=ranks))
    assert labelled.spans["step"].unique().to_list() == [0]
    assert [note.code for note in labelled.notes if note.level == "warning"] == ["step-ends-unknown"]
    assert not [note for note in label(whole).notes if note.level == "warning"]


def alone(words: list[str], rank: int) -> Profile:
    """One rank of several, and nothing that says how many there are."""
    whole = profile([[word] for word in words])
    spans, ranks = (frame.filter(pl.col("rank") == rank) for frame in (whole.spans, whole.ranks))
    return replace(whole, spans=spans, ranks=ranks, declared=Declared())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_stage_of_1f1b_alone(stage: int) -> None:
    """Stage 1 of 4 has the order of stage 1 of 2 with two chunks; the simpler one is believed."""
    labelled = label(alone([one_f_one_b(4, s, 6) for s in range(4)], stage))
    for kind in "FB":
        assert [m for m, _ in numbers(labelled, stage, kind)] == list(range(6))
    assert labelled.spans["chunk"].fill_null(0).sum() == 0


def test_a_stage_that_is_whole_beside_cut_ones_is_taken_for_what_its_other_steps_are() -> None:
    """Alone, stage 1 of 2 with 3 chunks looks like stage 1 of 6; in the second step stage 0 was cut."""
    words = [[interleaved(2, s, 4, 3)] * 2 for s in range(2)]
    whole = label(replace(profile(words), declared=Declared()))
    words[0][1] = words[0][1][:-2]
    cut = label(replace(profile(words), declared=Declared()))
    for kind in "FB":
        assert numbers(cut, 1, kind, step=1) == numbers(whole, 1, kind, step=1) == numbers(whole, 1, kind)
    assert {chunk for _, chunk in numbers(cut, 1, "F", step=1)} == {0, 1, 2}


def replicas(pipelines: int, stages: int, microbatches: int, steps: int) -> Profile:
    """Pipelines of 1F1B beside each other, without recorded steps; the ranks of one follow those of the other."""
    words = [[one_f_one_b(stages, s, microbatches)] * steps for _ in range(pipelines) for s in range(stages)]
    whole = profile(words, stepped=False, pp=stages)
    dp, stage = pl.col("rank") // stages, pl.col("rank") % stages
    return replace(whole, ranks=conform(whole.ranks.with_columns(stage=stage, dp=dp), RANKS)).validate()


@examples(5)
@given(st.integers(2, 4), st.integers(2, 7), st.integers(2, 3), st.integers(1, 3), st.booleans())
def test_a_cut_first_stage_without_steps_is_numbered_as_its_replica_or_not_at_all(
    stages: int, microbatches: int, steps: int, lost: int, at_the_end: bool
) -> None:
    whole = replicas(2, stages, microbatches, steps)
    truth = label(whole).spans.sort("rank", "start_ns").with_row_index("at")
    of_rank = truth.filter(pl.col("rank") == 0)["at"]
    gone = of_rank.tail(lost) if at_the_end else of_rank.head(lost)
    spans = whole.spans.sort("rank", "start_ns").with_row_index("at").filter(~pl.col("at").is_in(gone.implode()))
    cut = label(replace(whole, spans=spans.drop("at"))).spans.with_columns(spans["at"])
    both = cut.join(truth, on="at", suffix="_true")
    wrong = both.filter(pl.col("microbatch") != pl.col("microbatch_true"))
    assert wrong.is_empty()
    assert both.filter(pl.col("rank") > 0)["microbatch"].null_count() == 0
    if microbatches > stages and lost == 1:
        assert both["microbatch"].null_count() == 0
        assert both["step"].equals(both["step_true"])


def test_steps_from_the_optimizer() -> None:
    words = [[one_f_one_b(2, s, 3) + "O"] * 2 for s in range(2)]
    plain = profile(words, stepped=False)
    spans = plain.spans.with_columns(pl.col("kind").replace({"O": "OPT"}))
    labelled = label(replace(plain, spans=spans))
    assert labelled.spans.sort("rank", "start_ns")["step"].to_list() == ([0] * 7 + [1] * 7) * 2


def test_steps_of_numbered_forwards() -> None:
    """Micro-batch 0 begins a step; a capture that begins inside one has that as its first."""
    plain = profile([["FBFBFB", "FBFBFB"], ["BFB", "FBFBFB"]], stepped=False)
    each = {0: [0, 1, 2, 0, 1, 2], 1: [2, 0, 1, 2]}
    forward = pl.col("kind") == "F"
    spans = plain.spans.with_columns(
        microbatch=pl.when(forward).then(
            pl.Series([each[r].pop(0) if k == "F" else None for r, k in plain.spans.select("rank", "kind").rows()])
        ).cast(SPANS["microbatch"])
    )  # fmt: skip
    labelled = label(replace(plain, spans=spans)).spans.sort("rank", "start_ns")
    assert labelled["step"].to_list() == [0] * 6 + [1] * 6 + [0] * 3 + [1] * 6
