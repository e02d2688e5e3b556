"""Every benchmark can be started."""

from importlib import import_module

from tests.benchmarks.__main__ import names


def test_every_benchmark_has_rows() -> None:
    assert all(import_module(f"tests.benchmarks.bench_{name}").rows for name in names())
