"""The exported span table: columns, order and values as the documentation says."""

from pathlib import Path

import polars as pl
import pytest

from trace_export.model import HOSTS, RANKS, SPANS, Profile, conform
from trace_export.writers import tables

HEADER = (
    '"rank",host,device,stage,step,kind,microbatch,chunk,microbatch_b,chunk_b,start_ns,end_ns,origin,marker,run,window'
)


@pytest.fixture
def profile() -> Profile:
    ranks = {"rank": [0, 1], "host": ["a", "b"], "device": [4, None], "stage": [0, 1]}
    spans = {
        "rank": [1, 0, 1],
        "run": [0, 1, None],
        "step": [3, 3, None],
        "kind": ["F", "FB", None],
        "microbatch": [2, 5, None],
        "microbatch_b": [None, 2, None],
        "start_ns": [1763682000123456789, 1763682000123456789, 7],
        "end_ns": [1763682000123456790, 1763682000123456791, 8],
        "marker": ["F2", 'say "F5+B2", please', "Recv"],
        "origin": ["device", "host", "host"],
        "window": [2, None, None],
    }
    hosts = conform(pl.DataFrame({"host": ["a", "b"]}), HOSTS)
    return Profile(hosts=hosts, ranks=conform(pl.DataFrame(ranks), RANKS), spans=conform(pl.DataFrame(spans), SPANS))


def test_csv_text(profile: Profile, tmp_path: Path) -> None:
    tables.write_csv(profile, tmp_path / "spans.csv")
    assert (tmp_path / "spans.csv").read_text().splitlines() == [
        HEADER,
        "1,b,,1,,,,,,,7,8,host,Recv,,",
        '0,a,4,0,3,FB,5,,2,,1763682000123456789,1763682000123456791,host,"say ""F5+B2"", please",1,',
        "1,b,,1,3,F,2,,,,1763682000123456789,1763682000123456790,device,F2,0,2",
    ]


def test_parquet_holds_the_same_rows_and_the_same_bytes_twice(profile: Profile, tmp_path: Path) -> None:
    for name in ("one", "two"):
        tables.write_parquet(profile, tmp_path / name)
    frame = pl.read_parquet(tmp_path / "one")
    assert frame.columns == HEADER.replace('"', "").split(",")
    assert frame["start_ns"].to_list() == [7, 1763682000123456789, 1763682000123456789]
    assert frame["start_ns"].dtype == pl.Int64
    assert frame["rank"].to_list() == [1, 0, 1]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
