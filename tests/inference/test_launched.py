"""What a task of an unmarked process is, as the table of `work_of` says it."""

import polars as pl
import pytest

from trace_export.inference.kernel_names import KernelNames
from trace_export.inference.work import CALLS, COMPUTE, TRANSFER, coded, work_of

LEFT_OUT = None


@pytest.mark.parametrize(
    ("name", "between", "otherwise", "unsaid"),
    [
        ("gemm", COMPUTE, COMPUTE, COMPUTE),
        ("ncclDevKernel_SendRecv(args)", TRANSFER, LEFT_OUT, TRANSFER),
        ("ncclDevKernel_Generic_1(args)", TRANSFER, LEFT_OUT, LEFT_OUT),
        ("void ncclKernel_AllReduce_RING<float>(args)", LEFT_OUT, LEFT_OUT, LEFT_OUT),
    ],
)
def test_the_name_and_what_is_said_of_it_give_the_role(
    name: str, between: int | None, otherwise: int | None, unsaid: int | None
) -> None:
    calls = pl.DataFrame([(at, 1, at, False, True) for at in (10, 20, 30)], CALLS, orient="row")
    tasks = pl.DataFrame({"correlation": [10, 20, 30], "start": [11, 21, 31], "end": [12, 22, 32], "stream": [7] * 3})
    names, codes = coded(pl.Series([name] * 3))
    tasks, said = tasks.with_columns(codes), pl.Series([True, False, None])
    expected = [
        (start, role)
        for start, role in zip((11, 21, 31), (between, otherwise, unsaid), strict=True)
        if role is not None
    ]
    work = work_of(calls, tasks, KernelNames(names), said)
    assert list(zip(work.start.tolist(), work.role.tolist(), strict=True)) == expected
    alone = work_of(calls, tasks, KernelNames(names))
    assert alone.role.tolist() == ([] if unsaid is None else [unsaid] * 3)
