"""What is written in the background arrives whole and in order, and an error reaches the one who writes."""

from pathlib import Path

import pytest

from trace_export.writers.traces.sink import opened


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("count", [1, 50])
def test_a_full_disk_is_an_error(compress: bool, count: int) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with pytest.raises(OSError, match="No space left"), opened(Path("/dev/full"), compress) as write:
        for number in range(count):
            write(number.to_bytes(4, "little") * 100_000)
