"""The most frequent names, against a plain count."""

import polars as pl
import pytest

from trace_export.sources.ranges.named import NameCounts


def counted(pieces: list[list[str]]) -> NameCounts:
    counts = NameCounts()
    for piece in pieces:
        counts.add(pl.Series(piece, dtype=pl.String))
    return counts


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


def test_names_that_differ_by_their_numbers_count_together() -> None:
    """Else six calls of one name hide the passes, each of which has a name of its own."""
    passes = [f"{word} of mb {number}" for number in range(12) for word in ("fwd", "bwd")]
    counts = counted([["send"] * 6, passes[:13], passes[13:]])
    assert counts.most_frequent() == ["bwd of mb 0", "fwd of mb 0", "send"]
