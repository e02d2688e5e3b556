"""What counts as a kernel of communication, as an expression and in SQL."""

import re
import sqlite3

import pytest

from trace_export.inference.kernel_names import COMMUNICATION, is_like


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("ncclDevKernel_SendRecv", True),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", True),
        ("void ncclKernel<3>", True),
        ("rcclGenericKernel_1", True),
        ("mscclKernel_Sum_half_Simple_true", True),
        ("gemm_nccl", False),
        ("void gemm", False),
        ("Nccl", False),
    ],
)
def test_every_form_says_the_same(name: str, communicates: bool) -> None:
    with sqlite3.connect(":memory:") as db:
        (result,) = db.execute(f"SELECT {is_like('value')} FROM (SELECT ? AS value)", [name]).fetchone()
    assert bool(result) == communicates == bool(re.search(COMMUNICATION, name))
