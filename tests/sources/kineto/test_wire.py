"""Columns of protobuf fields against the protobuf package."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation

from trace_export.sources.kineto import wire

Number = st.integers(-(2**63), 2**63 - 1)
MESSAGES = st.lists(
    st.builds(
        DebugAnnotation,
        name=st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
        int_value=st.none() | Number,
        name_iid=st.none() | st.integers(0, 2**63 - 1),
        proto_value=st.none() | st.binary(max_size=9),
    ),
    max_size=12,
)


def buffered(messages: list[bytes]) -> tuple[wire.Bytes, wire.Ints, wire.Ints]:
    stop = np.cumsum([len(m) for m in messages] or [0], dtype=np.int64)[: len(messages)]
    buffer = np.frombuffer(b"".join(messages) + bytes(wire.PADDING), np.uint8)
    return buffer, stop - np.array([len(m) for m in messages], np.int64), stop


@settings(max_examples=50)
@given(MESSAGES)
def test_fields_are_those_of_protobuf(messages: list[DebugAnnotation]) -> None:
    buffer, begin, stop = buffered([m.SerializeToString() for m in messages])
    found, whole = wire.fields(buffer, begin, stop)
    assert whole.all()
    assert found.column(4, len(messages), 5).tolist() == [
        m.int_value if m.HasField("int_value") else 5 for m in messages
    ]
    assert found.column(1, len(messages)).tolist() == [m.name_iid for m in messages]
    names = found.of(10, nested=True)
    expected = {i: m.name for i, m in enumerate(messages) if m.HasField("name")}
    assert dict(zip(names.message.tolist(), wire.texts(buffer, names.value, names.stop), strict=True)) == expected


@given(st.lists(st.permutations([(1, b"\x08\x05"), (4, b"\x20\x07"), (10, b"\x52\x01n")]), max_size=6))
def test_fields_come_in_the_order_of_the_messages(messages: list[list[tuple[int, bytes]]]) -> None:
    """Whatever the order of the fields in each message, which protobuf leaves open."""
    buffer, begin, stop = buffered([b"".join(content for _, content in message) for message in messages])
    found, _ = wire.fields(buffer, begin, stop)
    for number, nested in ((1, False), (4, False), (10, True)):
        assert found.of(number, nested=nested).message.tolist() == list(range(len(messages)))


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_anything_can_be_read(messages: list[bytes]) -> None:
    """What protobuf reads is whole; of what it cannot read no field leaves its message."""
    buffer, begin, stop = buffered(messages)
    found, whole = wire.fields(buffer, begin, stop)
    nested = found.stop > 0
    assert (found.stop <= stop[found.message]).all()
    assert (found.value[nested] <= found.stop[nested]).all()
    for message, good in zip(messages, whole.tolist(), strict=True):
        try:
            DebugAnnotation.FromString(message)
        except Exception:
            continue
        groups = any(byte & 7 in (3, 4) for byte in message)
        assert good or groups


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_texts(contents: list[bytes]) -> None:
    buffer, begin, stop = buffered(contents)
    assert wire.texts(buffer, begin, stop).to_list() == [
        c.replace(b"\0", b"?").decode("utf-8", "replace") for c in contents
    ]
