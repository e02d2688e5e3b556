"""What is written in the background arrives whole and in order, and an error reaches the one who writes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from trace_export.writers.traces.sink import opened


@pytest.mark.parametrize("compress", [False, True])
def test_all_pieces_in_order(tmp_path: Path, compress: bool) -> None:
    pieces = [bytes([i]) * (1 + 1000 * i) for i in range(200)]
    with opened(tmp_path / "a", compress) as write:
        for piece in pieces:
            write(memoryview(piece))
    data = (tmp_path / "a").read_bytes()
    assert (gzip.decompress(data) if compress else data) == b"".join(pieces)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("count", [1, 50])
def test_a_full_disk_is_an_error(compress: bool, count: int) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with pytest.raises(OSError, match="No space left"), opened(Path("/dev/full"), compress) as write:
        for number in range(count):
            write(number.to_bytes(4, "little") * 100_000)


def test_an_error_of_the_caller_passes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), opened(tmp_path / "a", False) as write:
        write(b"x")
        raise KeyboardInterrupt
