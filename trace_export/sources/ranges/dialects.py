"""Dialects: parse the names of marked ranges into kinds, numbers and roles.

Training runtimes wrap their forward and backward passes in named ranges (NVTX, mstx, record_function), each in its own
spelling. `RULES` lists the spellings we know, the first that matches counts; `Dialects.parse` applies them to whole
columns of texts. Users add rules of their own, which come before ours.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import polars as pl

from trace_export.errors import UsageError
from trace_export.model import INT, TEXT, Declared, Schema, empty
from trace_export.sources.ranges.rules import (
    GROUP,
    LETTERS,
    MINDSPEED,
    NUMBERS,
    PLAIN,
    RULES,
    USER,
    N,
    Rule,
    as_given,
    user_rules,
)

NAMES: Schema = {
    "text": TEXT, "dialect": TEXT, "role": TEXT, "kind": TEXT, "microbatch": INT, "chunk": INT, "stage": INT,
    "microbatch_b": INT, "chunk_b": INT, "stage_b": INT, "step": INT, "rank": INT, "place": INT,
}  # fmt: skip
"""The meaning of one text. `role`: block (pipeline work of `kind`, see model.SPANS), p2p (see TRANSFERS), step (a range
around one training step), boundary (an action of the runtime, not a block), setup (what a process is: rank and sizes of
the run). `stage` counts over all chunks, `place` is the rank's place in its pipeline whatever its chunks (the stage of
model.RANKS)."""

TRANSFERS: Schema = {"text": TEXT, "role": TEXT, "direction": TEXT, "microbatch": INT, "chunk": INT, "stage": INT}
"""The transfers that a p2p text names; a fused one has several rows. `role`: send or recv, `direction`: F or B."""

OPERATION_SUFFIX = r", (?:seq = \d+, )?op_id = \d+.*"
"""torch's emit_nvtx appends this to a name."""

PITHTRAIN_PASS = r"^(?:for|back)ward chunk \d+ \(phase"

_TELLING = f"_model_graph|{PITHTRAIN_PASS}"
"""Parts of a marker that say something about the run."""
MOST_REMEMBERED = 2000
"""Texts of one source whose meaning is kept for the sources that follow."""

MOST_MESSAGE = 10_000
"""Characters of a message that is a whole dict."""


def run_facts(markers: pl.Series) -> Declared:
    """The facts about the whole pipeline in the spelling of a run's block markers (String).

    MindSpeed calls its steps forward_step_with_model_graph or forward_step_no_model_graph in DualPipeV only, where the
    numbers of forwards count on over the chunks; and `with` only where forwards and backwards are overlapped.
    PithTrain has no other schedule than DualPipeV.
    """
    if not markers.str.contains(_TELLING).any():
        return Declared()
    folded, overlapped = (
        bool(markers.str.contains(part, literal=True).any()) for part in ("_model_graph", "with_model_graph")
    )
    vee = bool(markers.str.contains(PITHTRAIN_PASS).any())
    return Declared(numbers_continue=folded or None, overlapped=overlapped or None, placement="vee" if vee else None)


@dataclass(frozen=True)
class Names:
    """Frames of schema NAMES and TRANSFERS: one row per text that a rule knows, in no order."""

    names: pl.DataFrame
    transfers: pl.DataFrame


@dataclass(frozen=True)
class Dialects:
    """An ordered set of rules."""

    rules: tuple[Rule, ...] = RULES

    @staticmethod
    def of(markers: Sequence[str]) -> Dialects:
        """The user's rules before ours. A marker is `REGEX=>KIND` or the path of a TOML file of rules:

            [[marker]]
            pattern = 'fwd mb(?P<microbatch>[0-9]+)'
            kind = "F"

        KIND is F, B, W, FB, OPT, STEP (a range around a step), OTHER (drawn under its own name), SKIP (not pipeline
        work), SEND_F, SEND_B, RECV_F or RECV_B. Groups may be named as in NUMBERS. Raises UsageError.
        """
        return _dialects((*(rule for marker in markers for rule in user_rules(marker)), *RULES))

    def parse(self, texts: pl.Series) -> Names:
        """The meanings of the `texts` (String, repetitions allowed); unknown ones are left out. Raises UsageError when
        a user's rule takes something else for a number."""
        distinct = texts.unique().sort()
        return _of_a_rank(self, tuple(distinct)) if len(distinct) <= MOST_REMEMBERED else self._parse(distinct)

    def _parse(self, texts: pl.Series) -> Names:
        """As `parse`, of texts that differ."""
        stems = pl.DataFrame({"text": texts}).filter(self.may_know("text"))
        stems = stems.with_columns(stem=pl.col("text").str.replace(OPERATION_SUFFIX + "$", ""))
        names = self._parsed(_with_messages(stems.select(pl.col("stem").unique())))
        return Names(_by_text(stems, names).select(NAMES.keys()), _by_text(stems, _transfers(names)))

    def may_know(self, texts: str) -> pl.Expr:
        """Whether some rule may know the text in the column `texts`: much cheaper than to parse it."""
        return pl.col(texts).str.contains(self._any)

    @cached_property
    def of_user(self) -> Dialects:
        """The user's rules alone."""
        return Dialects(tuple(rule for rule in self.rules if rule.dialect == USER))

    def unmatched(self, texts: pl.Series) -> tuple[str, ...]:
        """The user's rules, as they are given, that match none of the `texts`."""
        alone = ((rule, Dialects((rule._replace(role="block"),))) for rule in self.of_user.rules)
        return tuple(as_given(rule) for rule, dialects in alone if dialects.parse(texts).names.is_empty())

    @cached_property
    def _any(self) -> str:
        patterns = [GROUP.sub("(?:", rule.pattern) for rule in self.rules]
        message = r"\{.*['\"]name['\"].*\}"
        return f"^(?:{message}|{'|'.join(patterns)})(?:{OPERATION_SUFFIX})?$"

    @cached_property
    def _first(self) -> str:
        """One pattern in which the first rule that matches a whole name has its groups: rule `i` as a whole is the
        group `rule_i`, and its group `x` is called `x_i`."""
        patterns = [GROUP.sub(rf"(?P<\g<1>_{i}>", rule.pattern) for i, rule in enumerate(self.rules)]
        return f"^(?:{'|'.join(f'(?P<rule_{i}>{pattern})' for i, pattern in enumerate(patterns))})$"

    def _parsed(self, stems: pl.DataFrame) -> pl.DataFrame:
        """The columns of NAMES, and `transfers`, of those of the `stems` (see _with_messages) that a rule knows, with
        the stem as the text.

        | stem | groups of its rule | dialect, role, kind | numbers |
        |---|---|---|---|
        | `F3.1.0` | kind, microbatch, chunk | zero-bubble, block, F | microbatch 3, chunk 1 |
        | `PP:2SEND_F3` | stage, transfers | torch-pipelining, p2p, null | stage 2; transfers `SEND_F3` |
        | `Optimizer.step#Adam` | none | torch, block, OPT | none |
        | `{"name": "forward_step", "current_microbatch": 3}` | none | mindspeed, block, F | microbatch 3 |
        """
        groups = stems["name"].str.extract_groups(self._first).struct.unnest()
        groups = groups.select(c.name for c in groups if c.null_count() < len(groups))  # of the few rules that matched

        def group(name: str) -> pl.Expr:
            numbered = (f"{name}_{i}" for i in range(len(self.rules)))
            return pl.coalesce(pl.lit(None, TEXT), *(field for field in numbered if field in groups.columns))

        matched = [i for i in range(len(self.rules)) if f"rule_{i}" in groups.columns]
        which = pl.coalesce(pl.lit(None, INT), *(pl.when(pl.col(f"rule_{i}").is_not_null()).then(i) for i in matched))
        hits = stems.hstack(groups)
        columns = ["text", "name", *(f"in_message.{n}" for n in NUMBERS), "rule", "letter", "transfers", *NUMBERS]
        hits = hits.with_columns(
            rule=which, letter=group("kind"), transfers=group("transfers"), **{n: group(n) for n in NUMBERS}
        )
        hits = hits.select(columns).join(self._table, on="rule", how="inner")
        self._check_numbers(hits)
        p2p, plain = pl.col("role") == "p2p", pl.col("dialect") == PLAIN
        named = pl.col("letter").fill_null("") != ""
        letter = pl.col("letter").replace_strict(LETTERS, default=None, return_dtype=TEXT)
        return hits.with_columns(
            kind=pl.when(~p2p).then(pl.when(named).then(letter).otherwise("kind")),
            transfers=pl.when(p2p).then(pl.coalesce("transfers", "kind")),
            dialect=pl.when(plain & (pl.col("name") != pl.col("text"))).then(pl.lit(MINDSPEED)).otherwise("dialect"),
            **{n: pl.coalesce(f"in_message.{n}", pl.col(n).cast(INT)) for n in NUMBERS},
        ).select(*NAMES, "transfers")

    @cached_property
    def _table(self) -> pl.DataFrame:
        """The rules, less those whose names are no pipeline work: rule (its number), dialect, role, kind."""
        rows = [(i, rule.dialect, rule.role, rule.kind) for i, rule in enumerate(self.rules) if rule.role != "skip"]
        return pl.DataFrame(rows, {"rule": INT, "dialect": TEXT, "role": TEXT, "kind": TEXT}, orient="row")

    def _check_numbers(self, hits: pl.DataFrame) -> None:
        """Of the user's rules; the groups of ours take nothing but numbers."""
        if len(self.rules) == len(RULES):
            return
        for name in NUMBERS:
            wrong = hits.filter(~pl.col(name).str.contains(f"^{N}$"))
            if wrong.height:
                rule, text = wrong.select("rule", name).row(0)
                what = f'the group {name} matched "{text[:40]}", not a number of up to 9 digits'
                remedy = rf"write the group as (?P<{name}>\d+)"
                raise UsageError(f'"{self.rules[rule].pattern}": {what}', remedy, parameter="markers")


@lru_cache(maxsize=8)
def _dialects(rules: tuple[Rule, ...]) -> Dialects:
    """One object for the same rules, whose patterns are put together and tried once: a reader asks for every source."""
    dialects = Dialects(rules)
    try:
        dialects.parse(pl.Series([""]))
    except pl.exceptions.ComputeError as error:
        what = "the patterns are too large together"
        raise UsageError(what, "write fewer or shorter ones", parameter="markers") from error
    return dialects


@lru_cache(maxsize=64)
def _of_a_rank(dialects: Dialects, texts: tuple[str, ...]) -> Names:
    """Ranks of one stage have the same texts, and there are many of them."""
    return dialects._parse(pl.Series("text", texts, TEXT))


def _by_text(texts: pl.DataFrame, parsed: pl.DataFrame) -> pl.DataFrame:
    """`parsed` by stem → the same by every text that has that stem."""
    return texts.join(parsed.rename({"text": "stem"}), on="stem").select(parsed.columns)


def _transfers(names: pl.DataFrame) -> pl.DataFrame:
    """The `transfers` of `names` as TRANSFERS: SEND_BACKWARD.7.0.0_RECV_FORWARD.28.0.0, SEND_F3 or
    send_forward_backward_recv_forward, split."""
    if names["transfers"].null_count() == names.height:
        return empty(TRANSFERS)
    words = pl.col("transfers").str.to_uppercase().str.split("_")
    each = names.drop_nulls("transfers").with_columns(word=words).explode("word")
    role = pl.when(pl.col("word").is_in(["SEND", "RECV"])).then(pl.col("word").str.to_lowercase())
    transfer = rf"^(F|B)(?:ORWARD|ACKWARD)?(?:({N})|\.({N})\.({N})\.{N})?$"
    parts = pl.col("word").str.extract_groups(transfer)
    number = [parts.struct.field(str(i)).cast(INT) for i in (2, 3, 4)]
    split = each.with_columns(
        role=role.forward_fill().over("text"),
        direction=parts.struct.field("1"),
        microbatch=pl.coalesce(number[0], number[1], "microbatch"),
        chunk=pl.coalesce(number[2], "chunk"),
    )
    return split.drop_nulls(["role", "direction"]).select(TRANSFERS.keys())


def _with_messages(stems: pl.DataFrame) -> pl.DataFrame:
    """text (the stem), name (that in the message, where the text is one), in_message.NUMBER (of the message)."""
    message = stems["stem"].str.starts_with("{") & stems["stem"].str.ends_with("}")
    rows = []
    for text in stems["stem"].filter(message):
        name, numbers = _message(text)
        rows.append((text, name, *(numbers.get(n) for n in NUMBERS)))
    schema = {"text": TEXT, "name": TEXT, **{f"in_message.{n}": INT for n in NUMBERS}}
    plain = stems["stem"].filter(~message)
    names = pl.DataFrame({"text": plain, "name": plain})
    return pl.concat([names, pl.DataFrame(rows, schema, orient="row")], how="diagonal")


def _message(text: str) -> tuple[str, dict[str, int]]:
    """Name and numbers of a message `str({"name": …, "current_microbatch": 3})`; any other text is its own name."""
    if not (text.startswith("{") and text.endswith("}") and len(text) < MOST_MESSAGE):
        return text, {}
    message: object = None
    try:
        message = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return text, {}
    if not isinstance(message, dict) or not isinstance(message.get("name"), str):
        return text, {}
    aliases = {"current_microbatch": "microbatch", "model_chunk": "chunk", "stage": "place"}
    numbers = {aliases.get(k, k): v for k, v in message.items() if isinstance(k, str)}
    return message["name"], {k: v for k, v in numbers.items() if k in NUMBERS and type(v) is int and 0 <= v < 10**9}
