"""Dialects: parse the names of marked ranges into kinds, numbers and roles.

Training runtimes wrap their forward and backward passes in named ranges (NVTX, mstx, record_function), each in its own
spelling. `RULES` lists the spellings we know, the first that matches counts; `Dialects.parse` applies them to whole
columns of texts. Users add rules of their own, which come before ours.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from trace_export.errors import UsageError
from trace_export.files import read_file
from trace_export.model import INT, TEXT, Declared, Schema

NAMES: Schema = {
    "text": TEXT, "dialect": TEXT, "role": TEXT, "kind": TEXT, "microbatch": INT, "chunk": INT, "stage": INT,
    "microbatch_b": INT, "chunk_b": INT, "stage_b": INT, "step": INT, "rank": INT, "place": INT,
}  # fmt: skip
"""What one text means. `role`: block (pipeline work of `kind`, see model.SPANS), p2p (see TRANSFERS), step (a range
around one training step), boundary (an action of the runtime that is no block). `stage` counts over all chunks, `place`
is the rank's place in its pipeline whatever its chunks (the stage of model.RANKS)."""

TRANSFERS: Schema = {"text": TEXT, "role": TEXT, "direction": TEXT, "microbatch": INT, "chunk": INT, "stage": INT}
"""The transfers that a p2p text names; a fused one has several rows. `role`: send or recv, `direction`: F or B."""

NUMBERS = ("microbatch", "chunk", "stage", "microbatch_b", "chunk_b", "stage_b", "step", "rank", "place")
OWN = "trace-export"
"""The dialect of trace_export.instrument. In a process that has it, no other dialect names blocks: its ranges lie
inside or around those of the runtimes and mean the same work."""
PLAIN = "plain"
"""The dialect of names so common that they count only in processes without names of another dialect."""

SUFFIX = r", (?:seq = \d+, )?op_id = \d+.*"
"""What torch's emit_nvtx appends to a name."""

MOST_RULE_BYTES = 1 << 14
"""The size of a file of rules, some 200 of them. A dotted key takes the square of its length in memory."""
CACHE_SIZE = 1 << 16
"""Size of the parse cache."""

_N = r"\d{1,9}"
_WHERE = rf"(?: stage=(?P<place>{_N}))?(?: step=(?P<step>{_N}))?(?: rank=(?P<rank>{_N}))?"
_LETTERS = {
    "F": "F", "B": "B", "I": "B", "BW": "B", "W": "W", "R": None, "forward": "F", "backward": "B", "backward_bw": "B",
    "backward_b": "B", "backward_w": "W", "optimizer": "OPT",
}  # fmt: skip
"""What a rule's group `kind` captures → kind. I is torch's input gradient, BW a whole backward, R a recomputation."""

_USER_KINDS = {
    **{kind: ("block", kind) for kind in ("F", "B", "W", "FB", "OPT")},
    **{f"{role}_{letter}": ("p2p", f"{role}_{letter}") for role in ("SEND", "RECV") for letter in "FB"},
    "OTHER": ("block", None), "STEP": ("step", None), "SKIP": ("skip", None),
}  # fmt: skip


class Rule(NamedTuple):
    """`pattern` must match the whole name; its named groups give the numbers, `kind` and, for p2p, `transfers`."""

    dialect: str
    pattern: str
    role: str = "block"
    kind: str | None = None


RULES = (
    # trace_export.instrument: te:F3.1 stage=0 step=7 rank=5, te:F5.0+B2.1 …, te:Optimizer …
    Rule(OWN, rf"te:(?P<kind>[FBW])(?:(?P<microbatch>{_N})|\?)?(?:\.(?P<chunk>{_N}))?{_WHERE}"),
    Rule(
        OWN,
        rf"te:F(?:(?P<microbatch>{_N})|\?)?(?:\.(?P<chunk>{_N}))?"
        rf"\+B(?:(?P<microbatch_b>{_N})|\?)?(?:\.(?P<chunk_b>{_N}))?{_WHERE}",
        kind="FB",
    ),
    Rule(OWN, f"te:Optimizer{_WHERE}", kind="OPT"),
    Rule(OWN, f"te:Step{_WHERE}", "step"),
    # sail-sg/zero-bubble-pipeline-parallelism: kind, micro-batch, chunk, part of the sequence
    Rule("zero-bubble", rf"(?P<kind>F|BW|B|W|R)(?P<microbatch>{_N})\.(?P<chunk>{_N})\.{_N}"),
    Rule("zero-bubble", rf"W_clear\.(?P<chunk>{_N})\.{_N}", kind="W"),
    Rule("zero-bubble", rf"(?P<kind>[FBW])(?P<microbatch>{_N})"),
    Rule("zero-bubble", "Optimizer", kind="OPT"),
    Rule("zero-bubble", rf"iter_(?P<rank>{_N})_(?P<step>{_N})", "step"),
    Rule("zero-bubble", rf"(?P<transfers>(?:(?:^|_)(?:SEND|RECV)_(?:FORWARD|BACKWARD)\.{_N}\.{_N}\.{_N})+)", "p2p"),
    # torch.distributed.pipelining, multi-stage schedules
    Rule("torch-pipelining", rf"PP:(?P<stage>{_N})(?P<kind>[FIBW])(?P<microbatch>{_N})"),
    *(
        Rule("torch-pipelining", rf"PP:\({first};{second}\)OVERLAP_F_B", kind="FB")
        for f, b in [(rf"(?P<stage>{_N})F(?P<microbatch>{_N})", rf"(?P<stage_b>{_N})[IB](?P<microbatch_b>{_N})")]
        for first, second in ((f, b), (b, f))
    ),
    Rule("torch-pipelining", rf"PP:(?P<stage>{_N})(?P<transfers>(?:SEND|RECV)_[FB]{_N})", "p2p"),
    Rule("torch-pipelining", rf"PP:(?P<stage>{_N})(?:UNSHARD|RESHARD|REDUCE_GRAD)", "boundary"),
    Rule("torch", r"Optimizer\.step(?:#.*)?", kind="OPT"),
    Rule("torch", rf"ProfilerStep#(?P<step>{_N})", "step"),
    # torch.distributed.pipelining, one stage per rank
    Rule("torch-gpipe", rf"Forward (?P<microbatch>{_N})", kind="F"),
    Rule("torch-gpipe", rf"Backward (?P<microbatch>{_N})", kind="B"),
    # PaddlePaddle's static-graph executor: job type, chunk, micro-batch
    Rule("paddle", rf"(?P<kind>forward|backward(?:_bw?|_w)?)(?P<chunk>{_N})?(?:_reduce)?-(?P<microbatch>{_N})"),
    Rule("paddle", rf"(?P<kind>optimizer)-{_N}"),
    # MindSpeed (msprof snippets), as the name inside a dict or alone
    Rule("mindspeed", "forward_step_(?:with|no)_model_graph", kind="F"),
    Rule("mindspeed", "backward_step_with_model_graph", kind="B"),
    Rule("mindspeed", "forward_backward_overlapp?ing", kind="FB"),
    Rule("mindspeed", r"WeightGradStore[._]pop", kind="W"),
    # Megatron-LM --nvtx-ranges; it has no ranges around the passes themselves
    Rule("megatron", r"(?:.*\.)?p2p_communication\.(?P<transfers>(?:_?(?:send|recv)(?:_forward|_backward)+)+)", "p2p"),
    Rule("megatron", rf"training_step_(?P<step>{_N})", "step"),
    Rule("deepspeed", r"DeepSpeedEngine\.forward", kind="F"),
    Rule("deepspeed", r"DeepSpeedEngine\.backward", kind="B"),
    Rule("deepspeed", r"DeepSpeedEngine\.step", kind="OPT"),
    Rule(PLAIN, "forward_step|Forward", kind="F"),
    Rule(PLAIN, "backward_step|Backward", kind="B"),
    Rule(PLAIN, "optimizer_step", kind="OPT"),
    Rule(PLAIN, rf"(?i:step|iteration|iter)[ _#-]?(?P<step>{_N})", "step"),
)


def run_facts(markers: pl.Series) -> Declared:
    """What the spelling of a run's block markers (String) says about the pipeline as a whole.

    MindSpeed calls its steps forward_step_with_model_graph or forward_step_no_model_graph in DualPipeV only, where the
    numbers of forwards count on over the chunks; and `with` only where forwards and backwards are overlapped.
    """
    folded, overlapped = (
        bool(markers.str.contains(part, literal=True).any()) for part in ("_model_graph", "with_model_graph")
    )
    return Declared(numbers_continue=folded or None, overlapped=overlapped or None)


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
        return _dialects((*(rule for marker in markers for rule in _user_rules(marker)), *RULES))

    def parse(self, texts: pl.Series) -> Names:
        """What the `texts` (String, repetitions allowed) mean; unknown ones are left out. Raises UsageError when a
        user's rule takes something for a number that is none."""
        known = (
            pl.DataFrame({"text": texts})
            .filter(pl.col("text").str.contains(self._any))
            .unique()
            .with_columns(stem=pl.col("text").str.replace(SUFFIX + "$", ""))
        )
        found = [(stem, parsed) for stem in known["stem"].unique() if (parsed := self._cached(stem)) is not None]
        names = pl.DataFrame(
            [{**parsed, "text": stem} for stem, parsed in found], schema={**NAMES, "transfers": TEXT}, orient="row"
        )
        transfers = pl.DataFrame(
            [{**part, "text": stem} for stem, parsed in found for part in _transfers(parsed)], schema=TRANSFERS
        )
        return Names(_by_text(known, names).select(NAMES.keys()), _by_text(known, transfers))

    @cached_property
    def _any(self) -> str:
        """One pattern for Polars that lets through what some rule may know."""
        patterns = [re.sub(r"\(\?P<\w+>", "(?:", rule.pattern) for rule in self.rules]
        message = r"\{.*['\"]name['\"].*\}"
        return f"^(?:{message}|{'|'.join(patterns)})(?:{SUFFIX})?$"

    @cached_property
    def _compiled(self) -> list[tuple[Rule, re.Pattern[str]]]:
        return [(rule, re.compile(rule.pattern)) for rule in self.rules]

    @cached_property
    def _cached(self) -> Callable[[str], dict[str, Any] | None]:
        """`_parsed` with a cache: the ranks of a run have the same names."""
        return lru_cache(maxsize=CACHE_SIZE)(self._parsed)

    def _parsed(self, stem: str) -> dict[str, Any] | None:
        """The fields of NAMES for one name, and `transfers`; None when no rule knows it."""
        name, in_message = _message(stem)
        hits = ((rule, match) for rule, pattern in self._compiled if (match := pattern.fullmatch(name)))
        rule, match = next(hits, (None, None))
        if rule is None or match is None or rule.role == "skip":
            return None
        groups = match.groupdict()
        kind = _LETTERS.get(groups["kind"]) if groups.get("kind") else rule.kind
        numbers = {k: _number(rule, k, groups.get(k)) for k in NUMBERS}
        transfers = groups.get("transfers") or (rule.kind if rule.role == "p2p" else None)
        return {
            "dialect": rule.dialect if name == stem or rule.dialect != PLAIN else "mindspeed",
            "role": rule.role,
            "kind": None if rule.role == "p2p" else kind,
            "transfers": transfers,
            **{k: in_message.get(k, number) for k, number in numbers.items()},
        }


@lru_cache(maxsize=8)
def _dialects(rules: tuple[Rule, ...]) -> Dialects:
    """One object for the same rules, so that its cache serves all sources."""
    return Dialects(rules)


def _by_text(known: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """`found` by stem → the same by every text that has that stem."""
    return known.join(found.rename({"text": "stem"}), on="stem").select(found.columns)


def _number(rule: Rule, group: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(_N, text):
        raise UsageError(
            f'--marker "{rule.pattern}": the group {group} matched "{text[:40]}", not a number of up to 9 digits',
            rf"write the group as (?P<{group}>\d+)",
        )
    return int(text)


def _transfers(parsed: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """SEND_BACKWARD.7.0.0_RECV_FORWARD.28.0.0, SEND_F3 or send_forward_backward_recv_forward, split."""
    role = None
    for word in (parsed["transfers"] or "").upper().split("_"):
        if word in ("SEND", "RECV"):
            role = word.lower()
            continue
        match = re.fullmatch(rf"(F|B)(?:ORWARD|ACKWARD)?(?:({_N})|\.({_N})\.({_N})\.{_N})?", word)
        if match and role:
            microbatch = match[2] or match[3]
            yield {
                "role": role,
                "direction": match[1],
                "microbatch": int(microbatch) if microbatch else parsed["microbatch"],
                "chunk": int(match[4]) if match[4] else parsed["chunk"],
                "stage": parsed["stage"],
            }


def _message(text: str) -> tuple[str, dict[str, int]]:
    """Name and numbers of a message `str({"name": …, "current_microbatch": 3})`; any other text is its own name."""
    if not (text.startswith("{") and text.endswith("}") and len(text) < 10_000):
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


def _user_rules(marker: str) -> list[Rule]:
    """The rules of one --marker."""
    pattern, arrow, kind = marker.rpartition("=>")
    if arrow:
        return [_user_rule(pattern.strip(), kind.strip())]
    path = Path(marker)
    try:
        content = tomllib.loads(read_file(path, MOST_RULE_BYTES).decode("utf-8"))
    except RecursionError as error:
        raise UsageError(f"{path}: is not a file of marker rules: it is nested too deeply") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f'--marker "{marker}": neither REGEX=>KIND nor a readable TOML file ({why})',
            r"write it like --marker 'fwd(?P<microbatch>\d+)=>F'",
        ) from error
    entries = content.get("marker")
    if not isinstance(entries, list) or not all(isinstance(e, dict) and set(e) == {"pattern", "kind"} for e in entries):
        raise UsageError(f"{path}: is not a file of marker rules", 'write tables [[marker]] with "pattern" and "kind"')
    return [_user_rule(str(entry["pattern"]), str(entry["kind"])) for entry in entries]


def _user_rule(pattern: str, kind: str) -> Rule:
    if kind not in _USER_KINDS:
        raise UsageError(f'--marker "{pattern}": there is no kind "{kind}"', f"use one of {', '.join(_USER_KINDS)}")
    role, value = _USER_KINDS[kind]
    rule = Rule("user", pattern, role, value)
    try:
        groups = re.compile(pattern).groupindex
        pl.Series([""]).str.contains(Dialects((rule,))._any)
    except (re.error, pl.exceptions.ComputeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f'--marker "{pattern}": invalid regular expression ({reason})') from error
    if unknown := set(groups) - set(NUMBERS):
        raise UsageError(
            f'--marker "{pattern}": unknown group {", ".join(sorted(unknown))}', f"use {', '.join(NUMBERS)}"
        )
    return rule
