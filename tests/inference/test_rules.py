"""The rules that find passes among launches, each at the example of its docstring and where it could go wrong."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.launches import ENGINE, MAIN, cuts, work
from trace_export.inference.forwards import passes_of, trim
from trace_export.inference.infer import infer
from trace_export.inference.kernel_names import KernelNames
from trace_export.inference.kinds import split_weights_from_forwards
from trace_export.inference.pieces import (
    Piece,
    cuts_of,
    give_fills_to_backwards,
    join_weights,
    split,
    with_optimizers,
)
from trace_export.inference.repetition import by_repetition, equal_parts, split_weights, tiling
from trace_export.inference.step import Rows, Step
from trace_export.inference.threads import Threads, find_threads
from trace_export.inference.work import Timeline, pipeline_transfers

THREADS = Threads(MAIN, frozenset({ENGINE}))


def timeline(text: str) -> Timeline:
    return Timeline.of(work(text), *THREADS)


def shown(text: str, pieces: object) -> str:
    """Pieces as the docstrings write them: `M a b, B A B`."""
    rows = [token for token in text.split() if token not in [".", ",", "|"]]
    return ", ".join(" ".join([kind, *rows[begin:end]]) for kind, begin, end in pieces)  # type: ignore[attr-defined]


def step(text: str) -> Step:
    line = timeline(text)
    pieces, cut = split(line, cuts(text))
    pieces = give_fills_to_backwards(line, join_weights(line, pieces, cut))
    return Step(line, tuple(pieces))


def rows(text: str, result: list[Rows]) -> list[str]:
    tokens = [token for token in text.split() if token not in [".", ",", "|"]]
    return [" ".join(tokens[begin:end]) for begin, end in result]


def codes(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text.split()], np.int32)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("A B a 1 u b u c", "B A B, M a, OPT 1 u b u, M c"),
        ("A u B u C u a", "B A, OPT u, B B, OPT u, B C, OPT u, M a"),  # one after each
        ("A u B u C a D u", "B A, M u, B B, M u, B C, M a, B D, M u"),  # after most: no sign of an optimizer
        ("A B u | u C", "B A B, OPT u u, B C"),
    ],
)
def test_the_optimizer_lasts_from_its_first_kernel_to_its_last(text: str, pieces: str) -> None:
    line = timeline(text)
    updates = np.flatnonzero(line.names.optimizer[line.name])
    assert shown(text, with_optimizers(line, split(line, cuts(text))[0], updates, exact=False)) == pieces


def test_streams_on_which_the_engine_sends_are_not_the_pipelines() -> None:
    both = work("a | A | b")
    streams, threads = both.stream.copy(), both.thread.copy()
    assert pipeline_transfers(both, MAIN).tolist() == [1, 3]
    streams[1], threads[1] = 30, ENGINE
    other = both.__class__(both.launch, threads, both.start, both.end, streams, *list(vars(both).values())[5:])
    assert pipeline_transfers(other, MAIN).tolist() == [3]
    streams[3] = 30
    assert pipeline_transfers(other, MAIN).tolist() == []


def test_forwards_repeat() -> None:
    text = "e a b a b A B a b C D , E"
    assert rows(text, by_repetition(step(text)) or []) == ["a b", "a b", "a b"]
    assert by_repetition(step("e a b a c A B a b C D , E")) is None
    assert rows("a b a b A , B", by_repetition(step("a b a b A , B")) or []) == ["a b", "a b"]


def test_rows_are_read_as_units() -> None:
    unit = [codes("a b")]
    assert tiling(codes("e a b a b"), unit, free=True) == [(1, 3), (3, 5)]
    assert tiling(codes("e a b a b"), unit, free=False) is None
    assert tiling(codes("a b a b e e"), unit, free=True) is None
    assert tiling(codes("a b x a b"), unit, free=True) == [(3, 5)]
    assert equal_parts(Rows(0, 5), codes("a b a b a"), 2) is None


@given(st.lists(st.sampled_from(["a b c", "a d", "e f g h"]), min_size=1, max_size=12))
def test_a_row_of_units_is_read_back(units: list[str]) -> None:
    """Whatever units stand in whatever order: as many pieces as were put there, or more where one is two others."""
    row = codes(" ".join(units))
    result = tiling(row, [codes(unit) for unit in dict.fromkeys(units)], free=False)
    assert result is not None
    assert len(result) == len(units)
    assert [end - begin for begin, end in result] == [len(codes(unit)) for unit in units]


def test_a_weight_gradient_that_is_the_usual_one_twice_is_two() -> None:
    text = "g h | A | g h | B | g h g h | C"
    one = step(text)
    passes = [piece._replace(kind="W") if piece.kind == "M" else piece for piece in one.pieces]
    assert shown(text, split_weights(one.timeline, passes)) == "W g h, B A, W g h, B B, W g h, W g h, B C"


def test_cuts_are_transfers_or_without_any_waits() -> None:
    assert cuts_of(timeline("a | A . b")).evidence == "transfers"
    assert cuts_of(timeline("a . A . b")).evidence == "waits"


def test_weights_are_cut_off_the_forward_after_them() -> None:
    text = "e g x | e g x | A B | g g g e g x | C"
    one = step(text)
    assert rows(text, split_weights_from_forwards(one, one.own)) == ["e g x", "e g x", "g g g", "e g x"]


def test_launches_that_only_count_tokens_are_no_forward() -> None:
    text = "a b | n n | a b | A"
    assert rows(text, step(text).own) == ["a b", "a b"]


def test_counters_between_forwards_are_cut_off() -> None:
    one = step("a b | n a b | a b n | A")
    assert rows("a b | n a b | a b n | A", trim(one, one.own)) == ["a b"] * 3


STEP = "a b c d | a b c d | A B , C D u"
OTHERS = [f"{kind} {kernels}" for kind, kernels in [("F", "a b c d"), ("F", "a b c d"), ("B", "A B"), ("B", "C D")]]


def found_in(text: str) -> tuple[list[str], list[str]]:
    """The passes but for the optimizer, and the reasons of refusals."""
    result = infer(work(text), THREADS, None, np.zeros(0, np.int64))
    passes = [piece for piece in result.passes if piece.kind != "OPT"]
    return [one for one in shown(text, passes).split(", ") if one], [refusal.why for refusal in result.refused]


@pytest.mark.parametrize(
    "second",
    [
        "s t a b c d | a b c d | A B , C D u",  # logging, launched in one go with the forward
        "s t . a b c d | a b c d | A B , C D u",
        "s40 t40 a b c d | a b c d | A B , C D u",  # however long it takes
        "s t | a b c d | a b c d | A B , C D u",  # on a stage that receives its input
    ],
)
def test_a_forward_begins_like_the_others_whatever_comes_after_the_optimizer(second: str) -> None:
    assert found_in(f"{STEP} {second}") == (OTHERS * 2, [])


def test_what_is_launched_before_the_first_forward_of_the_capture_belongs_to_none() -> None:
    assert found_in(f"s t {STEP} {STEP}") == (OTHERS * 2, [])
    cut = STEP.removeprefix("a ")  # nothing is like the beginning of the others
    assert found_in(f"{cut} {STEP}") == (["F b c d", *OTHERS[1:], *OTHERS], [])


def test_a_step_whose_first_forward_begins_like_no_other_is_refused() -> None:
    second = STEP.replace("a b c d", "s t y b c d", 1)
    reasons = ["nothing shows where the first forward begins"]
    assert found_in(f"{STEP} {second} {STEP}") == ([*OTHERS, "B A B", "B C D", *OTHERS], reasons)
    received = STEP.replace("a b c d", "s t | y b c d", 1)
    assert found_in(f"{STEP} {received} {STEP}") == ([*OTHERS, "F y b c d", *OTHERS[1:], *OTHERS], [])


def test_the_only_forwards_of_steps_do_not_show_where_they_begin() -> None:
    one = "a b c d | A B u"
    assert found_in(f"{one} s t {one} s t {one}")[1] == ["nothing shows where the first forward begins"] * 2


def test_without_a_known_optimizer_forwards_begin_like_those_that_follow_others() -> None:
    step_without = STEP.removesuffix(" u")
    assert found_in(f"{step_without} v w {step_without} v w {step_without}") == (OTHERS * 3, [])


def test_an_only_forward_that_launches_much_more_than_the_others_is_refused() -> None:
    """A pipeline of one stage and one micro-batch, with an evaluation before the second step."""
    step = "a b c A u"
    result = found_in(f"{step} a b c n {step} {step} {step}")
    assert result == (["F a b c", "B A", "B A", *["F a b c", "B A"] * 2],
                     ["a forward that launches much more than the others"])  # fmt: skip


def test_a_count_of_tokens_is_no_forward() -> None:
    """However long it takes beside graphs, whose launches are few."""
    assert passes_of(step("n20 | g | A")).passes == [Piece("F", 1, 2), Piece("B", 2, 3)]


def test_a_step_may_end_without_an_optimizer() -> None:
    """As where the gradients overflowed, or are accumulated over several steps."""
    without = STEP.removesuffix(" u")
    assert found_in(f"{STEP} {without} s t {STEP} {STEP}") == (OTHERS * 4, [])
    other = STEP.replace("a b c d", "y b c d", 1)
    assert found_in(f"{STEP} {without} s t {other} {STEP}")[1] == ["3 forwards for 4 backwards"]


def test_where_forwards_and_backwards_alternate_the_first_ones_begin_like_the_others() -> None:
    """A pipeline of one stage: nothing is sent."""
    one = "a b c d A B a b c d C D u"
    expected = ["F a b c d", "B A B", "F a b c d", "B C D"]
    assert found_in(f"{one} s t {one} s t {one}") == (expected * 3, [])


def test_forwards_between_which_nothing_was_sent_are_refused() -> None:
    """The wait inside the only forward of a cut step with two backwards would make it two."""
    text = "g a g . g a g | A B , C D u"
    assert found_in(text) == (["B A B", "B C D"], ["forwards with no transfer between them"])


def test_a_piece_like_a_forward_that_belongs_to_none_is_refused() -> None:
    """One of many would be a small part of all work."""
    many = " | ".join(["a10 b10"] * 30)
    backwards = " , ".join(["A B"] * 30)
    assert passes_of(step(f"{many} | {backwards}")).refused == ""
    extra = f"{many} | x y20 | {backwards}"
    assert passes_of(step(extra)).refused == "work of the main thread that belongs to no pass"


def test_a_step_that_does_not_balance_keeps_its_backwards() -> None:
    text = "g c | A B | g c | C D , E"
    result = passes_of(step(text))
    assert shown(text, result.passes) == "B A B, B C D, B E"
    assert result.refused == "2 forwards for 3 backwards"


def test_a_step_that_holds_weight_gradients_alone_has_no_forward() -> None:
    assert passes_of(step("+ A + | + B +")) == ([Piece("W", 0, 3), Piece("W", 3, 6)], "no forward")


def test_forwards_of_kernels_that_run_in_backwards_are_refused() -> None:
    text = "z y | z y | A B , C D"
    assert passes_of(step(text)).refused == ""
    line = work(text)
    texts = line.names.texts.replace("z", "flash_bwd_kernel")
    named = line.__class__(*list(vars(line).values())[:7], KernelNames(texts), line.calls)
    result = infer(named, THREADS, None, np.zeros(0, np.int64))
    assert {refusal.why for refusal in result.refused} == {"kernels of a backward in the forwards"}
    assert [piece.kind for piece in result.passes] == ["B", "B"]


def test_a_backward_before_its_forward_is_refused() -> None:
    result = passes_of(step("a b | A , B | a b | a b | a b | C , D"))
    assert result.refused == "a backward before its forward"
    assert {piece.kind for piece in result.passes} == {"B"}


def test_weight_gradients_among_the_forwards_are_refused() -> None:
    """A capture that begins inside a step shows weight gradients before the first backward that it has."""
    assert passes_of(step("g h g | g a b | A , B")).refused == ""
    assert passes_of(step("g g g | g a b | A , B")).refused == "weight gradients among the forwards"


def test_a_first_step_whose_forwards_are_like_none_of_the_others_is_refused() -> None:
    def reasons(first: str) -> list[str]:
        text = f"{first} {first} A , A u a b | a b | B , B u a b | a b | C , C u"
        return [refusal.why for refusal in infer(work(text), THREADS, None, np.zeros(0, np.int64)).refused]

    assert reasons("a b |") == []
    assert reasons("x y z a b |") == ["forwards unlike those of the other steps"]


def test_what_a_cut_step_has_too_many_of_is_no_evaluation() -> None:
    """The same step, where the capture may lack two backwards."""
    text = "a b | a b | a b | a b | A | a b | B"
    assert passes_of(replace(step(text), ended=False)).refused == "5 forwards for 2 backwards"


def test_one_row_before_one_backward_is_a_forward_only_where_no_other_backward_may_follow() -> None:
    one = step("a b a b a b A")
    assert [piece.kind for piece in passes_of(one).passes] == ["F", "B"]
    assert passes_of(replace(one, ended=False)).refused.startswith("nothing that separates forwards")


def test_rows_of_products_before_backwards_may_be_weight_gradients_that_come_after_the_last_one_too() -> None:
    """The capture begins where the forwards of the step are over."""
    assert passes_of(step("g g | A | g g | B")).refused == ""
    assert passes_of(step("g g | A | g g | B | g g")).refused == "weight gradients among the forwards"


def test_forwards_that_begin_with_products_where_others_do_not_are_refused() -> None:
    """The step was not ended."""
    text = "a b | C | a b | D u | a b | C | a b | D u | g g a b | g g a b | A , B"
    (refusal,) = infer(work(text), THREADS, None, np.zeros(0, np.int64)).refused
    assert refusal.why == "forwards unlike those of the other steps"


def test_weight_gradients_of_backwards_before_the_capture_are_no_part_of_a_forward() -> None:
    result = found_in("g g a b | A | g g a b | B u | a b | C | a b | D u")
    assert result == (["F a b", "B A", "F a b", "B B", "F a b", "B C", "F a b", "B D"], [])


def test_an_evaluation_at_the_start_of_a_step_is_left_out() -> None:
    text = "a b | a b | a b | a b | A | a b | B"
    result = passes_of(step(text))
    assert result.refused == ""
    assert [piece.begin for piece in result.passes if piece.kind == "F"] == [6, 9]


@pytest.mark.parametrize(
    ("named", "engine", "first", "expected"),
    [
        ({ENGINE}, set(), None, THREADS),
        (set(), {ENGINE}, None, THREADS),
        (set(), set(), MAIN, THREADS),
    ],
)
def test_threads_are_known_by_name_nodes_or_place(
    named: set[int], engine: set[int], first: int | None, expected: Threads
) -> None:
    launched = work("a b A B c C D E u")
    assert find_threads(launched, frozenset(named), frozenset(engine), first) == expected


def test_several_threads_without_an_optimizer_or_a_backward_are_inference() -> None:
    """As an optimizer tells training, so does the name of a kernel of backwards, here `Q`; names of threads do, too."""
    unknown = "no kernel is named like a backward or an optimizer"
    assert find_threads(work("a b A B a b A B"), frozenset(), frozenset(), MAIN) == unknown
    assert find_threads(work("a b A B a b A B"), frozenset(), frozenset(), MAIN, optimizer=True) == THREADS
    assert find_threads(work("a b A Q a b A Q"), frozenset(), frozenset(), MAIN) == THREADS
    assert find_threads(work("a b A B a b A B"), frozenset({ENGINE}), frozenset(), MAIN) == THREADS


def test_the_thread_of_the_optimizer_is_the_calling_one() -> None:
    assert find_threads(work("a A B C D u"), frozenset(), frozenset(), None) == THREADS


@pytest.mark.parametrize("text", ["a b c", ""])
def test_one_thread_tells_nothing(text: str) -> None:
    assert find_threads(work(text), frozenset(), frozenset(), MAIN) == "one thread launches everything"
