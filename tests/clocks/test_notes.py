"""What a fit found is said: which notes, between whom, and how much."""

from dataclasses import replace

from tests.support.profiles import table, two_stages
from trace_export.clocks.fit import ClockFit
from trace_export.clocks.notes import of_alignment
from trace_export.model import CLOCKS

PROFILE = replace(two_stages(), clocks=table([{"host": "a"}, {"host": "b"}], CLOCKS))
PLAIN = ClockFit(PROFILE.clocks)


def said(fit: ClockFit) -> dict[str, str]:
    """The texts of the notes on the fit, by their codes."""
    assert PROFILE.messages.is_empty() and not PROFILE.without_wall_clock
    notes = of_alignment(PROFILE, PROFILE.clocks, fit)
    return {note.code: note.text.removeprefix("clocks: ") for note in notes if note.code != "clock-violations"}


def test_a_sound_fit_says_nothing() -> None:
    assert said(PLAIN) == {}


def test_rates_that_vary() -> None:
    assert said(replace(PLAIN, drift_variation_ns=2_500.0)) == {
        "clock-drift-varies": "rates are not constant, but vary by about 2.5 µs"
    }


def test_latencies_that_differ() -> None:
    assert said(replace(PLAIN, asymmetric=True)).keys() == {"clock-asymmetric"}


def test_pairs_that_messages_place_badly() -> None:
    result = said(replace(PLAIN, one_way=("a – b",), few_messages=("a – c",)))
    assert result["clock-one-way"].startswith("messages go in one direction only between a – b;")
    assert result["clock-few-messages"] == "few messages between a – c"
