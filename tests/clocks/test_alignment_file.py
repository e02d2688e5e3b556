"""clock_alignment.json: what is written can be used again, and what is wrong with a file is one sentence."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks.test_align import with_messages
from tests.support.clock_runs import Clocks, make
from tests.support.rows import examples
from tests.support.texts import CHARACTERS
from trace_export.clocks import alignment_file
from trace_export.clocks.align import align
from trace_export.errors import AlignmentError, SourceError


def test_a_written_file_can_be_used_again(tmp_path: Path) -> None:
    profile = with_messages(make(Clocks(seed=15, replicas=2)))
    done = align(profile, offsets={"host03": -40_000})
    alignment_file.write(done, tmp_path / "clock_alignment.json")
    again = align(profile, tmp_path / "clock_alignment.json")
    for table in ("spans", "messages", "collectives"):
        assert getattr(again, table).equals(getattr(done, table))
    assert set(again.clocks["status"]) == {"file"}


def test_the_file_follows_its_own_formula(tmp_path: Path) -> None:
    profile = with_messages(make(Clocks(seed=16)))
    done = align(profile)
    alignment_file.write(done, tmp_path / "clock_alignment.json")
    written = orjson.loads((tmp_path / "clock_alignment.json").read_bytes())
    host = dict(profile.ranks.select("rank", "host").iter_rows())
    both = zip(profile.spans["start_ns"], done.spans["start_ns"], strict=True)
    for rank, (start, shown) in zip(profile.spans["rank"], both, strict=True):
        entry = written["hosts"][host[rank]]
        by_hand = start - entry["offset_ns"] - round(entry["drift"] * (start - written["t0_ns"]))
        assert abs(by_hand - shown) <= 1


def test_a_file_of_the_first_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "clock_alignment.json"
    host = {"offset_ns": 1500, "drift": 0.0, "reference_ns": 7, "method": "p2p+collective, component 1", "sd_us": 0.8,
            "bound_us": None, "messages": 12, "collectives": 0}  # fmt: skip
    path.write_bytes(orjson.dumps({"format": "trace_export clock alignment 1", "t0_ns": 7, "hosts": {"host00": host}}))
    clocks = align(make(Clocks(seed=17)).profile, path).clocks
    first = clocks.row(0, named=True)
    assert (first["status"], first["offset_ns"], first["sd_ns"], first["bound_ns"]) == ("file", 1500, 800.0, None)
    assert clocks["status"].to_list()[1:] == ["wall"] * (len(clocks) - 1)


def entry(text: str) -> str:
    return f'{{"hosts": {{"host00": {text}}}}}'


BROKEN = {
    "empty": ("", "is not JSON"),
    "a list": ("[]", "is not a clock alignment"),
    "nothing in it": ("{}", 'has no "hosts"'),
    "hosts is a number": ('{"hosts": 3}', 'has no "hosts"'),
    "a host is a number": ('{"hosts": {"host00": 3}}', 'has no "hosts"'),
    "no offset": (entry('{"ofset_ns": 3}'), "has no offset_ns"),
    "text for an offset": (entry('{"offset_ns": "x"}'), "offset_ns"),
    "an offset beyond 64 bits": (entry('{"offset_ns": 1e30}'), "offset_ns"),
    "an offset of 40 digits": (entry(f'{{"offset_ns": {"9" * 40}}}'), "offset_ns"),
    "a whole second per second": (entry('{"offset_ns": 0, "drift": 7}'), "drift"),
    "NaN": (entry('{"offset_ns": 0, "drift": NaN}'), "is not JSON"),
    "infinity": (entry('{"offset_ns": 0, "drift": 1e999}'), "drift|is not JSON"),
    "many messages": (entry('{"offset_ns": 0, "messages": "many"}'), "messages"),
    "more messages than there can be": (entry('{"offset_ns": 0, "messages": 1e30}'), "messages"),
    "a list of uncertainties": (entry('{"offset_ns": 0, "sd_us": [1]}'), "sd_us"),
    "a negative uncertainty": (entry('{"offset_ns": 0, "bound_us": -1}'), "bound_us"),
    "a wrong reference": (entry('{"offset_ns": 0, "reference_ns": true}'), "reference_ns"),
    "a wrong t0": ('{"t0_ns": "now", "hosts": {}}', "t0_ns"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    text, words = BROKEN[name]
    path = tmp_path / "clocks.json"
    path.write_text(text)
    with pytest.raises(SourceError, match=words) as error:
        align(make(Clocks(seed=17)).profile, path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 300


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(CHARACTERS, max_size=9),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["offset_ns", "drift", "messages", "sd_us", "x"]), inner)
    ),
    max_leaves=5,
)
PROFILE = make(Clocks(seed=17, stages=2, microbatches=2, steps=1)).profile
FIELDS = ("offset_ns", "drift", "reference_ns", "messages", "collectives", "sd_us", "bound_us", "status")


@examples(12)
@given(host=st.dictionaries(st.sampled_from(FIELDS), anything), t0=st.integers(-(2**70), 2**70) | anything)
def test_whatever_is_in_the_file_is_used_or_refused(
    host: dict[str, Any], t0: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn_clocks.json"
    path.write_text(json.dumps({"t0_ns": t0, "hosts": {"host00": host}}))
    try:
        done = align(PROFILE, path).validate()
    except (SourceError, AlignmentError):
        return
    assert done.clocks["host"].to_list() == ["host00", "host01"]
