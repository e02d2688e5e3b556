"""How many workers are chosen, from costs, cores and memory."""

import os

import psutil
import pytest

from trace_export.workers import sizing
from trace_export.workers.sizing import Workers, choose_workers, free_memory


def test_workers_follow_time_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of: the sum; 0.6 s and the sum by the cores, or the longest; side by side, 0.65 of the sum."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(sizing, "free_memory", lambda: 64 << 30)
    assert choose_workers([], 0, releases_gil=False) == Workers(1)
    assert choose_workers([60.0], 1 << 30, releases_gil=True) == Workers(1)
    assert choose_workers([0.1] * 3, 1, releases_gil=False) == Workers(1)
    assert choose_workers([0.009] * 64, 1, releases_gil=False) == Workers(1)  # 0.58 s, processes 0.64 s
    assert choose_workers([0.1] * 3, 1, releases_gil=True) == Workers(2, threads=True)
    assert choose_workers([0.05] * 64, 1, releases_gil=False) == Workers(16)
    assert choose_workers([0.05] * 64, 1, releases_gil=True) == Workers(16)  # 0.8 s, threads 2.1 s
    assert choose_workers([5.0, 0.1], 1, releases_gil=False) == Workers(1)  # the longest decides
    assert choose_workers([1.0] * 4, 1 << 30, releases_gil=False) == Workers(4)
    monkeypatch.setattr(sizing, "free_memory", lambda: 4 << 30)
    assert choose_workers([1.0] * 4, 1 << 30, releases_gil=False) == Workers(3)
    monkeypatch.setattr(sizing, "free_memory", lambda: 100 << 20)
    assert choose_workers([1.0] * 4, 1 << 30, releases_gil=True) == Workers(1)


def test_free_memory_is_what_the_system_says() -> None:
    assert 0 < free_memory() <= psutil.virtual_memory().total
