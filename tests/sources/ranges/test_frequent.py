"""The most frequent names, against a plain count."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_export.sources.ranges.named import NameCounts

NAMES = st.sampled_from(
    ["my_pass", "layer 1", "layer 2", "load", "loss", "attention", "mlp", "", "aten::mm", "F3, op_id = 4"]
)


def counted(pieces: list[list[str]]) -> NameCounts:
    counts = NameCounts()
    for piece in pieces:
        counts.add(pl.Series(piece, dtype=pl.String))
    return counts


@settings(max_examples=40)
@given(st.lists(st.lists(NAMES, max_size=30), max_size=4), st.randoms())
def test_order_is_that_of_a_plain_count(pieces: list[list[str]], chance: object) -> None:
    """Whatever the order of ranges and the pieces in which they come."""
    names = [name for piece in pieces for name in piece]
    plain = Counter("F3" if n.startswith("F3") else n for n in names if n and n != "aten::mm")
    expected = sorted(plain, key=lambda n: (-plain[n], n))[:5]
    counts = counted(pieces)
    assert counts.most_frequent() == expected
    assert counts.total == sum(1 for n in names if n)
    chance.shuffle(names)  # type: ignore[attr-defined]
    assert counted([names]).most_frequent() == expected


@pytest.mark.parametrize(
    "name",
    [
        "aten::linear", "autograd::engine::evaluate_function: MmBackward0", "MmBackward0", "c10d::allreduce_",
        "nccl:all_reduce", "ncclAllReduce", "cudaLaunchKernel", "cuLaunchKernelEx", "hipLaunchKernel",
        "ProfilerStep#12", "Optimizer.step#AdamW.step", "Optimizer.zero_grad#AdamW.zero_grad",
        "enumerate(DataLoader)#_Iter.__next__",
        "DistributedDataParallel.forward", "Torch-Compiled Region: 0/0", "## Call CompiledFxGraph fx ##",
        "TorchDynamo Cache Lookup", "FSDP::all_gather", "record_param_comms", "aten::mm, seq = 3, op_id = 7",
    ],
)  # fmt: skip
def test_names_of_frameworks_are_left_out(name: str) -> None:
    counts = counted([[name, name]])
    assert (counts.most_frequent(), counts.total) == ([], 2)


@pytest.mark.parametrize("name", ["cut_off", "cuda stage", "nccl wait", "Backward", "MyBackward", "custom", "hip"])
def test_names_of_the_user_are_not(name: str) -> None:
    assert counted([[name]]).most_frequent() == [name]
