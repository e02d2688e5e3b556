"""Events that are left out before decoding are none that anybody wants, whatever the file looks like."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.generators.kineto_trace import lines
from trace_export.sources.kineto.heads import without_others
from trace_export.sources.kineto.json_events import Wanted, columns_of

CATEGORIES = ["kernel", "cpu_op", "python_function", "gpu_user_annotation", "x", "", 'q"', "cuda_runtime", "kernel_x"]
Name = st.sampled_from(["te:F0", "te", "aten::add", '"cat": "kernel"', "}, {", '}, {"ph": "X"', "{", "}", "a{b}"])
Event = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXMsfi"), "cat": st.sampled_from(CATEGORIES), "name": Name},
    optional={"args": st.dictionaries(st.sampled_from("a{}"), Name)},
)
Nested = st.lists(Event, max_size=3)
DUMPED = {"spaced": {}, "compact": {"separators": (",", ":")}, "indented": {"indent": 2}, "sorted": {"sort_keys": True}}
WANTED = [Wanted("kernel"), Wanted("kernel", marks="te:"), Wanted(r"\w+_runtime|kernel", threads=True)]


def written(events: list[dict[str, Any]], layout: str) -> bytes:
    if layout == "kineto":
        text = ",".join(lines({"args": {}, "ts": "[1]", "dur": "[2]", **event}) for event in events)
    else:
        text = json.dumps(events, **DUMPED[layout])[1:-1]  # type: ignore[arg-type]
    return text.encode()


@settings(max_examples=30)
@given(
    events=st.lists(Event, max_size=12),
    inner=Nested,
    layout=st.sampled_from(["kineto", *DUMPED]),
    wanted=st.sampled_from(WANTED),
)
def test_nothing_that_is_wanted_is_left_out(
    events: list[dict[str, Any]], inner: list[dict[str, Any]], layout: str, wanted: Wanted
) -> None:
    if events and layout != "kineto":
        events = [{**events[0], "inner": inner}, *events[1:], *events]
    body = written(events, layout)
    result, expected = without_others(body, wanted), wanted.events.decoded(body)
    assert expected is not None
    if result is not None:
        rest = wanted.events.decoded(result)
        assert rest is not None
        assert columns_of(rest).equals(columns_of(expected))


@pytest.mark.parametrize("layout", ["kineto", "spaced", "compact", "indented"])
@pytest.mark.parametrize("wanted", WANTED[:2])
def test_operators_are_left_out(layout: str, wanted: Wanted) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "args": {}}
    events = [event] * 50 + [{**event, "cat": "kernel"}, {**event, "name": "te:F0"}] + [{**event, "ph": "s"}] * 50
    rest = without_others(written(events, layout), wanted)
    assert rest is not None
    assert rest.count(b'"ph"') == (1 if wanted.marks is None else 2)


def test_events_inside_events_are_not_looked_at() -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add"}
    assert without_others(written([event, {**event, "inner": [event, event]}, event], "spaced"), WANTED[0]) is None
