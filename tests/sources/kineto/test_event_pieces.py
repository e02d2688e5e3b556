"""Lists of events that are read in pieces of bounded size."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from trace_export.sources.kineto import event_stream

EVENT = b'{"ph":"X","cat":"kernel","ts":1,"x":[' + b"[]," * 10 + b"0]}"


def test_a_list_that_is_no_json_is_not_read_again_for_each_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    read_json = pl.read_json

    def counted(source: Any, **options: Any) -> pl.DataFrame:
        read.append(len(source.getbuffer()))
        return read_json(source, **options)

    monkeypatch.setattr(pl, "read_json", counted)
    body = b",".join([EVENT] * 100_000)
    found = event_stream._parsed(body)
    assert found is not None and found.height == 100_000
    assert max(read) < len(body) / 10
    read.clear()
    assert event_stream._parsed(body + b',{"ph":"X"') is None
    assert sum(read) < 4 * len(body)
