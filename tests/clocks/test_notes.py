"""What a fit found is said: which notes, between whom, and how much."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from tests.support.profiles import table, two_stages
from trace_export.clocks.fit import ClockFit
from trace_export.clocks.fit_tables import PAIRS
from trace_export.clocks.notes import of_alignment
from trace_export.model import CLOCKS, conform

PROFILE = replace(two_stages(), clocks=table([{"host": "a"}, {"host": "b"}], CLOCKS))
ENOUGH = {"made_of": "p2p", "messages_ab": 100, "messages_ba": 100}
USUAL = "clock-symmetry-assumed"


def said(fit: ClockFit) -> dict[str, str]:
    """The texts of the notes on the fit, by their codes."""
    assert PROFILE.messages.is_empty() and not PROFILE.without_wall_clock
    notes = of_alignment(PROFILE, PROFILE.clocks, fit)
    return {note.code: note.text.removeprefix("clocks: ") for note in notes if note.code != "clock-violations"}


def pairs(*rows: dict[str, object]) -> pl.DataFrame:
    return conform(pl.DataFrame([ENOUGH | row for row in rows]), PAIRS)


def test_a_fit_of_no_pair_says_nothing() -> None:
    assert said(ClockFit(PROFILE.clocks, pl.DataFrame(schema=PAIRS))) == {}


def test_the_pair_that_disagrees_most_is_named() -> None:
    """By the amount, whatever its sign; pairs that only each other place do not disagree."""
    amounts = [("a", "b", 3_000.0), ("a", "c", -5_000.0), ("b", "c", None)]
    rows = [{"host_a": a, "host_b": b, "disagreement_ns": off} for a, b, off in amounts]
    found = said(ClockFit(PROFILE.clocks, pairs(*rows)))
    assert found.keys() == {"clock-worst-pair", USUAL}
    assert found["clock-worst-pair"] == "the largest remaining disagreement is 5 µs, between a and c"
    assert said(ClockFit(PROFILE.clocks, pairs(rows[2]))).keys() == {USUAL}


def test_what_halves_of_the_data_say_and_rates_that_vary() -> None:
    plain = ClockFit(PROFILE.clocks, pairs({"host_a": "a", "host_b": "b"}))
    assert said(replace(plain, holdout_ns=700.0)).get("clock-holdout") == (
        "refitting on half of the data moves no clock by more than 700 ns"
    )
    assert said(replace(plain, drift_variation_ns=2_500.0)).get("clock-drift-varies") == (
        "drift varies; clocks deviate from constant rates by about 2.5 µs"
    )
    assert said(plain).keys() == {USUAL}


def test_latencies_that_differ_replace_the_assumption_that_they_do_not() -> None:
    plain = ClockFit(PROFILE.clocks, pairs({"host_a": "a", "host_b": "b"}))
    assert said(replace(plain, asymmetric=True)).keys() == {"clock-asymmetric"}


def test_pairs_that_messages_place_badly() -> None:
    one_way = {"host_a": "a", "host_b": "b", "messages_ba": 0}
    few = {"host_a": "a", "host_b": "c", "messages_ab": 1, "messages_ba": 1}
    found = said(ClockFit(PROFILE.clocks, pairs(one_way, few)))
    assert found["clock-one-way"].startswith("messages in one direction only between a – b;")
    assert found["clock-few-messages"] == "few messages between a – c"
