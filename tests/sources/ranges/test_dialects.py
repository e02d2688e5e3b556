"""Names of ranges, spelled as the runtimes spell them, and what they must mean."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import examples
from tests.support.texts import CHARACTERS
from trace_export.errors import UsageError
from trace_export.sources.ranges.dialects import Dialects
from trace_export.sources.ranges.rules import NUMBERS, RULES


def said(text: str, *markers: str) -> dict[str, Any] | None:
    """The non-null fields of one text; None when it is unknown."""
    rows = Dialects.of(markers).parse(pl.Series([text])).names.drop("text", "dialect").rows(named=True)
    return {k: v for k, v in rows[0].items() if v is not None} if rows else None


def transfers(text: str) -> list[tuple[Any, ...]]:
    return Dialects().parse(pl.Series([text])).transfers.drop("text").rows()


BLOCKS = [
    ("F3.0.0", {"kind": "F", "microbatch": 3, "chunk": 0}),
    ("B12.1.0", {"kind": "B", "microbatch": 12, "chunk": 1}),
    ("W0.2.3", {"kind": "W", "microbatch": 0, "chunk": 2}),
    ("F1000.10.10", {"kind": "F", "microbatch": 1000, "chunk": 10}),
    ("W_clear.1.0", {"kind": "W", "chunk": 1}),
    ("R4.0.0", {"microbatch": 4, "chunk": 0}),
    ("F3", {"kind": "F", "microbatch": 3}),
    ("Optimizer", {"kind": "OPT"}),
    ("PP:2F0", {"kind": "F", "stage": 2, "microbatch": 0}),
    ("PP:0I3", {"kind": "B", "stage": 0, "microbatch": 3}),
    ("PP:7B11", {"kind": "B", "stage": 7, "microbatch": 11}),
    ("PP:1W5", {"kind": "W", "stage": 1, "microbatch": 5}),
    ("PP:4F0, op_id = 37", {"kind": "F", "stage": 4, "microbatch": 0}),
    ("PP:4F0, seq = 12, op_id = 37, sizes = [[1]]", {"kind": "F", "stage": 4, "microbatch": 0}),
    ("PP:(4F6;3B1)OVERLAP_F_B", {"kind": "FB", "stage": 4, "microbatch": 6, "stage_b": 3, "microbatch_b": 1}),
    ("PP:(3B1;4F6)OVERLAP_F_B", {"kind": "FB", "stage": 4, "microbatch": 6, "stage_b": 3, "microbatch_b": 1}),
    ("Optimizer.step#AdamW.step", {"kind": "OPT"}),
    ("Forward 3", {"kind": "F", "microbatch": 3}),
    ("Backward 0", {"kind": "B", "microbatch": 0}),
    ("forward-0", {"kind": "F", "microbatch": 0}),
    ("backward_b1-3", {"kind": "B", "microbatch": 3, "chunk": 1}),
    ("backward_w0_reduce-7", {"kind": "W", "microbatch": 7, "chunk": 0}),
    ("backward-2", {"kind": "B", "microbatch": 2}),
    ("optimizer-0", {"kind": "OPT"}),
    ("DeepSpeedEngine.forward", {"kind": "F"}),
    ("## forward ##", {"kind": "F"}),
    ("## backward ##", {"kind": "B"}),
    ("attn(F)", {"kind": "F"}),
    ("mlp(B)", {"kind": "B"}),
    ("mlp(W)", {"kind": "W"}),
    ("DeepSpeedEngine.backward", {"kind": "B"}),
    ("DeepSpeedEngine.step", {"kind": "OPT"}),
    ("forward_step", {"kind": "F"}),
    ("backward_step", {"kind": "B"}),
    ("{'name': 'forward_step'}", {"kind": "F"}),
    ("{'name': 'forward_step_with_model_graph', 'current_microbatch': 3}", {"kind": "F", "microbatch": 3}),
    ("{'name': 'forward_step_no_model_graph', 'current_microbatch': 0}", {"kind": "F", "microbatch": 0}),
    ("{'name': 'backward_step_with_model_graph'}", {"kind": "B"}),
    ("{'name': 'forward_backward_overlaping', 'current_microbatch': 9}", {"kind": "FB", "microbatch": 9}),
    ("{'name': 'forward_backward_overlapping', 'current_microbatch': None}", {"kind": "FB"}),
    ('{"name": "backward_step", "microbatch": 4, "ok": null}', {"kind": "B", "microbatch": 4}),
    ("{'name': 'WeightGradStore.pop'}", {"kind": "W"}),
    ("WeightGradStore_pop", {"kind": "W"}),
]


@pytest.mark.parametrize(("text", "meaning"), BLOCKS)
def test_blocks(text: str, meaning: dict[str, Any]) -> None:
    assert said(text) == {"role": "block", **meaning}


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("iter_3_17", {"step": 17, "rank": 3}),
        ("ProfilerStep#5", {"step": 5}),
        ("training_step_8", {"step": 8}),
        ("iteration 12", {"step": 12}),
    ],
)
def test_steps(text: str, meaning: dict[str, int]) -> None:
    assert said(text) == {"role": "step", **meaning}


NOT_PIPELINE = """Foo|x|F|F3.0|F3.0.0.0|xF3.0.0|F3.0.0 |Forward layer_3|Block_7|BroadcastBackward0|W_clear|PP:F0|PP:1X0
PP:1F|PP:(4F4)OVERLAP_F_B|forward_step_func|backward_step_func|pre_send|Offload|aten::linear, seq = 578, op_id = 71
F99999999999.0.0|{'name': 3}|{'name': 'dataloader'}|{'name': 'forward_step'|{broken}|{1: 2}|[]|
{'name': 'forward_step', 'a': [[[}|megatron.core.models.gpt forward|Optimizer.stepper|SEND_FORWARD"""


@pytest.mark.parametrize("text", [t for line in NOT_PIPELINE.split("\n") for t in line.split("|")])
def test_other_names_mean_nothing(text: str) -> None:
    assert said(text) is None


def test_hostile_dicts_mean_nothing() -> None:
    deep = "{'name': " + "[" * 4000 + "]" * 4000 + "}"
    assert said(deep) is None
    assert said("{'name': '" + "x" * 100_000 + "'}") is None
    assert said("{'name': 'forward_step', 'current_microbatch': -1, 'chunk': True, 'stage': 1e3}") == {
        "role": "block",
        "kind": "F",
    }


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("SEND_FORWARD.3.1.0", [("send", "F", 3, 1, None)]),
        (
            "RECV_BACKWARD.8.0.0_SEND_BACKWARD.7.0.0_RECV_FORWARD.28.0.0",
            [("recv", "B", 8, 0, None), ("send", "B", 7, 0, None), ("recv", "F", 28, 0, None)],
        ),
        ("PP:1SEND_F0, op_id = 3", [("send", "F", 0, None, 1)]),
        ("PP:2RECV_B11", [("recv", "B", 11, None, 2)]),
        ("PP::fwd_send (stage 0)", [("send", "F", None, None, 0)]),
        ("PP::bwd_recv (stage 12)", [("recv", "B", None, None, 12)]),
        (
            "megatron.core.pipeline_parallel.p2p_communication.send_forward_recv_backward",
            [("send", "F", None, None, None), ("recv", "B", None, None, None)],
        ),
        (
            "megatron.core.pipeline_parallel.p2p_communication.send_forward_backward_recv_forward_backward",
            [(role, way, None, None, None) for role in ("send", "recv") for way in "FB"],
        ),
    ],
)
def test_transfers(text: str, parts: list[tuple[Any, ...]]) -> None:
    assert transfers(text) == parts
    fields = said(text)
    assert fields is not None
    assert fields["role"] == "p2p"


def test_users_rules_come_first(tmp_path: Path) -> None:
    assert said("fwd mb7 of 2", r"fwd mb(?P<microbatch>\d+) of (?P<stage>\d)=>F") == {
        "role": "block",
        "kind": "F",
        "microbatch": 7,
        "stage": 2,
    }
    assert said("F3.0.0", r"F.*=>SKIP") is None
    assert said("a=>b", "a=>b=>W") == {"role": "block", "kind": "W"}
    assert said("loss", "loss=>OTHER") == {"role": "block"}
    assert said("epoch 4", r"epoch (?P<step>\d+)=>STEP") == {"role": "step", "step": 4}
    rules = tmp_path / "rules.toml"
    rules.write_text(
        "[[marker]]\npattern = 'f(?P<microbatch>[0-9]+)'\nkind = \"F\"\n[[marker]]\npattern='x'\nkind='OPT'\n"
    )
    assert said("f7", str(rules)) == {"role": "block", "kind": "F", "microbatch": 7}
    assert said("x", str(rules)) == {"role": "block", "kind": "OPT"}
    assert said("B0.0.0", str(rules)) == {"role": "block", "kind": "B", "microbatch": 0, "chunk": 0}


def test_a_users_transfer() -> None:
    parsed = Dialects.of([r"tx(?P<microbatch>\d+)=>SEND_B"]).parse(pl.Series(["tx4"]))
    assert parsed.transfers.drop("text").rows() == [("send", "B", 4, None, None)]


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("x=>Q", 'no kind "Q"'),
        ("(=>F", "invalid regular expression"),
        ("(?=x)x=>F", "invalid regular expression (look-around"),
        (r"(x)\1=>F", "invalid regular expression (backreferences are not supported)"),
        ("(?x) x # all that follows=>F", "invalid regular expression"),
        ("x)|(y=>F", "invalid regular expression"),
        ("(?:x{1000}){1000}=>F", "invalid regular expression (Compiled regex exceeds size limit"),
        ("(?P<size>x)=>F", "unknown group size"),
        ("nosuch.toml", "neither REGEX=>KIND nor a readable TOML file"),
    ],
)
def test_bad_rules_are_refused(marker: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        Dialects.of([marker])


def test_bad_rule_files_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    for content in ("marker = 3", "[[marker]]\npattern = 'x'", "not toml"):
        path.write_text(content)
        with pytest.raises(UsageError):
            Dialects.of([str(path)])
    with pytest.raises(UsageError, match="not a number"):
        said("mbx", "mb(?P<microbatch>.)=>F")


def test_rules_that_are_too_large_together_are_refused() -> None:
    markers = [f"{letter}{{60000}}=>F" for letter in "abcdefghij"]
    Dialects.of(markers[:1])
    with pytest.raises(UsageError, match="too large together"):
        Dialects.of(markers)


def test_no_rule_takes_long() -> None:
    """Where the engine goes back and tries again, this one takes 2⁴⁰ steps for each name."""
    dialects = Dialects.of(["(x+x+)+y|x*=>F"])
    names = pl.Series(["x" * 40, "x" * 40 + "z", "x" * 40 + "y"])
    assert sorted(dialects.parse(names).names["text"]) == sorted([names[0], names[2]])


@examples(15)
@given(
    st.lists(
        st.one_of(*(st.from_regex(rule.pattern, fullmatch=True, alphabet=CHARACTERS) for rule in RULES)), max_size=8
    )
)
def test_the_first_rule_that_matches_the_whole_name_counts(texts: list[str]) -> None:
    """Against Python's engine, rule by rule."""
    expected = {}
    for text in texts:
        first = next(rule for rule in RULES if re.fullmatch(rule.pattern, text))
        groups = re.fullmatch(first.pattern, text).groupdict()  # type: ignore[union-attr]
        numbers = [int(groups[n]) if groups.get(n) else None for n in NUMBERS]
        expected[text] = (first.dialect, first.role, *numbers)
    parsed = Dialects().parse(pl.Series(texts, dtype=pl.String)).names
    assert {row[0]: row[1:] for row in parsed.select("text", "dialect", "role", *NUMBERS).iter_rows()} == expected


@pytest.mark.parametrize("name", ["dualpipev_p4_m8", "zbv_p4_m8"])
def test_names_of_torch_schedules(golden: Path, name: str) -> None:
    """The golden files are in torch's own text form, which its ranges carry behind "PP:"; each part's F and B comes
    once per micro-batch. What it marks beside blocks is known too."""
    texts = [f"PP:{text}" for row in (golden / "orders" / f"{name}.csv").read_text().split() for text in row.split(",")]
    texts += [f"PP:{part}{other}" for part in range(8) for other in ("SEND_F1", "RECV_B0", "UNSHARD", "RESHARD")]
    texts += ["PP:3REDUCE_GRAD", "Optimizer.step"]
    names = pl.DataFrame({"text": texts}).join(Dialects().parse(pl.Series(texts)).names, on="text", how="left")
    assert not names["role"].null_count()
    forward = names.filter(pl.col("kind").is_in(["F", "FB"])).select("stage", "microbatch").rows()
    overlapped = names.filter(pl.col("kind") == "FB").select("stage_b", "microbatch_b").rows()
    backward = names.filter(pl.col("kind") == "B").select("stage", "microbatch").rows() + overlapped
    assert Counter(forward) == Counter(backward) == Counter((s, m) for s in range(8) for m in range(8))
