"""A file without a byte, as where the disk was full, is told of in every format; the other ranks are read."""

import shutil
from pathlib import Path

import pytest

import trace_export

FILES = {
    "paddle/single": "workerlog.2", "nsys/two_hosts": "node1.sqlite", "rocpd": "*_results.db",
    "ascend": "ascend_pytorch_profiler_2.db", "kineto/two_hosts": "node1_702.*", "recorder/two_hosts": "rank2.blocks",
}  # fmt: skip


@pytest.mark.parametrize("sample", FILES)
def test_an_empty_file_is_called_so(sample: str, samples: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(samples / sample, logs)
    path = sorted(logs.rglob(FILES[sample]))[-1]
    path.write_bytes(b"")
    run = trace_export.load(logs)
    (failure,) = run.failures
    assert str(failure).startswith(f"{path} is empty; its export or copy did not finish")
    assert run.ranks.height in (2, 3)
