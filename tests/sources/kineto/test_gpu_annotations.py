"""The annotations of torch.profiler on the device against our attribution."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samples.generators.kineto_trace import MAIN, Trace
from tests.support.torch_traces import loaded, notes, times


def annotated(trace: Trace, number: int, start: int, end: int, name: str = "F0.0.0", stream: int = 7) -> None:
    """The annotation of the event `number` on the device, as Kineto writes it: 1 ns longer at both ends."""
    given = {"External id": number, "device": 0, "stream": stream}
    trace.add("gpu_user_annotation", name, start - 1, end + 1, stream, **given)


def block(trace: Trace, at: int, name: str, *, thread: object = MAIN) -> int:
    """A block with a kernel and NCCL's on two streams, launched by `thread`; returns its number."""
    number = len(trace.events)
    trace.range(at, at + 900, name)
    trace.kernel(at + 10_000, at + 20_000, trace.call(at + 10, thread=thread))
    trace.kernel(at + 12_000, at + 25_000, trace.call(at + 20, thread=thread), name="ncclDevKernel_X", stream=20)
    return number


@settings(max_examples=15, deadline=None)
@given(
    off=st.lists(
        st.tuples(st.sampled_from([0, 1000, 1001, -1000, -1001, 5000]), st.sampled_from([0, 1000, -1001])),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_ranges_with_another_time_are_counted(
    tmp_path_factory: pytest.TempPathFactory, off: list[tuple[int, int]]
) -> None:
    trace = Trace()
    for i, (start, end) in enumerate(off):
        at = 1_000 + i * 50_000
        number = block(trace, at, f"F{i}.0.0")
        annotated(trace, number, at + 10_000 + start, at + 20_000, f"F{i}.0.0")
        annotated(trace, number, at + 12_000, at + 25_000 + end, f"F{i}.0.0", stream=20)
    path = trace.write(tmp_path_factory.getbasetemp() / "annotated.json")
    first = [min(10_000 + start, 12_000) for start, _ in off]
    last = [max(25_000 + end, 20_000) for _, end in off]
    wrong = sum(abs(s - 10_000) > 1000 or abs(e - 25_000) > 1000 for s, e in zip(first, last, strict=True))
    found = [n for n in loaded(path).notes if n.code == "gpu-annotations-differ"]
    assert [n.count for n in found] == [wrong] * (wrong > 0)
    assert all(n.text.endswith(f"of {len(off)} compared") for n in found)


@pytest.mark.parametrize("why", ["other thread", "inner annotation"])
def test_ranges_whose_annotation_lacks_work_are_not_compared(tmp_path: Path, why: str) -> None:
    trace = Trace()
    number = block(trace, 1_000, "F0.0.0", thread=77 if why == "other thread" else MAIN)
    if why == "inner annotation":
        trace.range(1_005, 1_100, "attention")
    annotated(trace, number, 13_000, 14_000)
    profile = loaded(trace.write(tmp_path / "t.json"))
    assert times(profile) == [("F0.0.0", 11_000, 21_000)]
    assert "gpu-annotations-differ" not in notes(profile)


@pytest.mark.parametrize("launched_inside", [True, False])
def test_copies_count_as_for_torch_profiler(tmp_path: Path, launched_inside: bool) -> None:
    """They are in the time of the annotation, though not in that of the block."""
    trace = Trace()
    number = block(trace, 1_000, "F0.0.0")
    trace.copy(3_000, 4_000, trace.call(1_500 if launched_inside else 2_500, name="cudaMemcpyAsync"))
    annotated(trace, number, 3_000, 26_000)
    profile = loaded(trace.write(tmp_path / "t.json"))
    assert times(profile) == [("F0.0.0", 11_000, 21_000)]
    assert ("gpu-annotations-differ" in notes(profile)) is not launched_inside
