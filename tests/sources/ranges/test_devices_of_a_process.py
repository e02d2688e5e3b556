"""Which devices a process runs."""

from __future__ import annotations

import pytest

from trace_export.sources.ranges.devices import runs_several


@pytest.mark.parametrize(
    ("kernels", "devices"),
    [({0: 50, 1: 40}, [0, 1]), ({0: 50, 1: 5}, []), ({3: 50}, []), ({-1: 50, 0: 50}, []), ({}, [])],
    ids=["two", "few on the second", "one", "one and no device", "none"],
)
def test_a_device_counts_from_a_tenth_of_the_kernels_of_the_main_one(
    kernels: dict[int, int], devices: list[int]
) -> None:
    assert runs_several(kernels) == devices
