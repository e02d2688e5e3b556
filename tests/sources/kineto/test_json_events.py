"""Events in JSON whose fields may hold anything."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.texts import CHARACTERS
from trace_export.sources.kineto.json_events import SCHEMA, Wanted, columns_of

Number = st.integers(-(2**63), 2**63 - 1)
Other = (
    st.none()
    | st.booleans()
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(CHARACTERS), st.integers())
)
Anything = Number | st.text(CHARACTERS, max_size=3) | Other
Event = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "gpu_memcpy"])},
    optional={
        "name": Anything,
        "tid": Anything,
        "args": Other | st.dictionaries(st.sampled_from(["correlation", "Seq", "stream", "dtype", "x"]), Anything),
    },
)


def value(of: Any, key: str) -> Any:
    result = of.get(key) if isinstance(of, dict) else None
    return None if isinstance(result, (bool, list, dict)) else result


def text(of: Any, key: str) -> str | None:
    result = value(of, key)
    return None if result is None else str(result)


@settings(max_examples=40)
@given(events=st.lists(Event | Other | st.fixed_dictionaries({"ph": Anything, "cat": Anything}), max_size=6))
def test_fields_of_another_type_are_absent_and_the_others_are_read(events: list[Any]) -> None:
    body = json.dumps(events)[1:-1].encode()
    result = columns_of(Wanted("kernel").events.decoded(body) or [])
    assert result.schema == SCHEMA
    wanted = [e for e in events if value(e, "ph") == "X" and value(e, "cat") == "kernel"]
    expected = [
        (text(e, "name") or "", text(e, "tid"), text(e.get("args"), "stream"), text(e.get("args"), "dtype"))
        for e in wanted
    ]
    assert result.select("name", "tid", "stream", "dtype").rows() == expected
    for column in ("correlation", "Seq"):
        given = [value(e.get("args"), column) for e in wanted]
        numbers = [
            (ours, theirs) for ours, theirs in zip(result[column], given, strict=True) if isinstance(theirs, int)
        ]
        assert [ours for ours, _ in numbers] == [theirs for _, theirs in numbers]
