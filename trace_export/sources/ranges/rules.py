"""The rules by which names of ranges are understood: our own, one for each spelling of a runtime, and the user's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import polars as pl

from trace_export.errors import UsageError
from trace_export.files import read_toml
from trace_export.model import WORK_KINDS

NUMBERS = ("microbatch", "chunk", "stage", "microbatch_b", "chunk_b", "stage_b", "step", "rank", "place")
OWN = "trace-export"
"""The dialect of trace_export.instrument. In a process that has it, only the user's rules name passes besides: its
ranges lie inside or around those of the runtimes and mean the same work."""
USER = "user"
"""The dialect of the user's rules; what they name always counts."""
PLAIN = "plain"
"""The dialect of names so common that they count only for kinds that the process names in no other dialect."""
MINDSPEED = "mindspeed"
"""The dialect of MindSpeed, which calls some of its passes by the plain names of Megatron's functions."""
PIPELINING = "torch-pipelining"
"""The dialect of the runtime of torch.distributed.pipelining."""
DEEPSPEED = "deepspeed"
"""The dialect of DeepSpeed, whose pipeline engine runs backwards and the optimizer without the functions that have
names: only the last stage names its backwards, none its optimizer (deepspeed/runtime/pipe/engine.py)."""
PITHTRAIN = "pithtrain"
"""The dialect of PithTrain, whose two chunks lie in a V."""
STAGE = "torch-stage"
"""The dialect of its stages, which name their transfers but do not number them."""

N = "[0-9]{1,9}"
GROUP = re.compile(r"\(\?P?<(\w+)>")
_WHERE = rf"(?: stage=(?P<place>{N}))?(?: step=(?P<step>{N}))?(?: rank=(?P<rank>{N}))?"
LETTERS = {
    "F": "F", "B": "B", "I": "B", "BW": "B", "W": "W", "R": None, "forward": "F", "backward": "B", "backward_bw": "B",
    "backward_b": "B", "backward_w": "W", "optimizer": "OPT",
}  # fmt: skip
"""The text that a rule's group `kind` captures → kind. I is torch's input gradient, BW a whole backward, R a
recomputation."""

MOST_TRANSFERS = 8
"""Transfers in one name; runtimes fuse up to four."""
_USER_KINDS = {
    **{kind: ("block", kind) for kind in (*WORK_KINDS, "OPT")},
    **{f"{role}_{letter}": ("p2p", f"{role}_{letter}") for role in ("SEND", "RECV") for letter in "FB"},
    "OTHER": ("block", None), "STEP": ("step", None), "SKIP": ("skip", None),
}  # fmt: skip


class Rule(NamedTuple):
    """`pattern` must match the whole name; its named groups give the numbers, `kind` and, for p2p, `transfers`. It is
    one of Rust's regex crate, whose matching takes time linear in the name, whatever the pattern."""

    dialect: str
    pattern: str
    role: str = "block"
    kind: str | None = None


RULES = (
    # trace_export.instrument: te:F3.1 stage=0 step=7 rank=5, te:F5.0+B2.1 …, te:Optimizer …
    Rule(OWN, rf"te:(?P<kind>[FBW])(?:(?P<microbatch>{N})|\?)?(?:\.(?P<chunk>{N}))?{_WHERE}"),
    Rule(
        OWN,
        rf"te:F(?:(?P<microbatch>{N})|\?)?(?:\.(?P<chunk>{N}))?"
        rf"\+B(?:(?P<microbatch_b>{N})|\?)?(?:\.(?P<chunk_b>{N}))?{_WHERE}",
        kind="FB",
    ),
    Rule(OWN, f"te:Optimizer{_WHERE}", kind="OPT"),
    Rule(OWN, f"te:Step{_WHERE}", "step"),
    # sail-sg/zero-bubble-pipeline-parallelism: kind, micro-batch, chunk, part of the sequence
    Rule("zero-bubble", rf"(?P<kind>F|BW|B|W|R)(?P<microbatch>{N})\.(?P<chunk>{N})\.{N}"),
    Rule("zero-bubble", rf"W_clear\.(?P<chunk>{N})\.{N}", kind="W"),
    Rule("zero-bubble", rf"(?P<kind>[FBW])(?P<microbatch>{N})"),
    Rule("zero-bubble", "Optimizer", kind="OPT"),
    Rule("zero-bubble", rf"iter_(?P<rank>{N})_(?P<step>{N})", "step"),
    *(
        Rule("zero-bubble", rf"(?P<transfers>{transfer}(?:_{transfer}){{0,{MOST_TRANSFERS - 1}}})", "p2p")
        for transfer in [rf"(?:SEND|RECV)_(?:FORWARD|BACKWARD)\.{N}\.{N}\.{N}"]
    ),
    # torch.distributed.pipelining, multi-stage schedules
    Rule(PIPELINING, rf"PP:(?P<stage>{N})(?P<kind>[FIBW])(?P<microbatch>{N})"),
    *(
        Rule(PIPELINING, rf"PP:\({first};{second}\)OVERLAP_F_B", kind="FB")
        for f, b in [(rf"(?P<stage>{N})F(?P<microbatch>{N})", rf"(?P<stage_b>{N})[IB](?P<microbatch_b>{N})")]
        for first, second in ((f, b), (b, f))
    ),
    Rule(PIPELINING, rf"PP:(?P<stage>{N})(?P<transfers>(?:SEND|RECV)_[FB]{N})", "p2p"),
    Rule(PIPELINING, rf"PP:(?P<stage>{N})(?:UNSHARD|RESHARD|REDUCE_GRAD)", "boundary"),
    *(
        Rule(STAGE, rf"PP::{pass_}_{side.lower()} \(stage (?P<stage>{N})\)", "p2p", f"{side}_{letter}")
        for pass_, letter in (("fwd", "F"), ("bwd", "B"))
        for side in ("SEND", "RECV")
    ),
    Rule("torch", r"Optimizer\.step(?:#.*)?", kind="OPT"),
    Rule("torch", rf"ProfilerStep#(?P<step>{N})", "step"),
    # torch.distributed.pipelining, one stage per rank
    Rule("torch-gpipe", rf"Forward (?P<microbatch>{N})", kind="F"),
    Rule("torch-gpipe", rf"Backward (?P<microbatch>{N})", kind="B"),
    # PaddlePaddle's static-graph executor: job type, chunk, micro-batch
    Rule("paddle", rf"(?P<kind>forward|backward(?:_bw?|_w)?)(?P<chunk>{N})?(?:_reduce)?-(?P<microbatch>{N})"),
    Rule("paddle", rf"(?P<kind>optimizer)-{N}"),
    # MindSpeed (msprof snippets), as the name inside a dict or alone
    Rule(MINDSPEED, "forward_step_(?:with|no)_model_graph", kind="F"),
    Rule(MINDSPEED, "backward_step_with_model_graph", kind="B"),
    Rule(MINDSPEED, "forward_backward_overlapp?ing", kind="FB"),
    Rule(MINDSPEED, r"WeightGradStore[._]pop", kind="W"),
    # mlc-ai/pith-train, pithtrain/dualpipe/dualpipev.py: its "chunk" is the micro-batch, its phase the chunk of the V
    Rule(PITHTRAIN, rf"forward chunk (?P<microbatch>{N}) \(phase(?P<chunk>{N})\)", kind="F"),
    Rule(PITHTRAIN, rf"backward chunk (?P<microbatch>{N}) \(phase(?P<chunk>{N})\)", kind="B"),
    Rule(
        PITHTRAIN,
        rf"forward chunk (?P<microbatch>{N}) \(phase(?P<chunk>{N})\)"
        rf" backward chunk (?P<microbatch_b>{N}) \(phase(?P<chunk_b>{N})\)",
        kind="FB",
    ),
    Rule(PITHTRAIN, "weight chunk", kind="W"),
    Rule(PITHTRAIN, rf"rank=(?P<rank>{N}); pp=(?P<place>{N})/{N}(?: .*)?", "setup"),
    # Megatron-LM --nvtx-ranges; it has no ranges around the passes themselves
    Rule(
        "megatron",
        r"(?:.*\.)?p2p_communication\.(?P<transfers>(?:_?(?:send|recv)(?:_forward|_backward){1,2}){1,4})",
        "p2p",
    ),
    Rule("megatron", rf"training_step_(?P<step>{N})", "step"),
    Rule(DEEPSPEED, r"DeepSpeedEngine\.forward", kind="F"),
    Rule(DEEPSPEED, r"DeepSpeedEngine\.backward", kind="B"),
    Rule(DEEPSPEED, r"DeepSpeedEngine\.step", kind="OPT"),
    Rule(PLAIN, "forward_step|Forward|## forward ##", kind="F"),
    Rule(PLAIN, "backward_step|Backward|## backward ##", kind="B"),
    Rule(PLAIN, "optimizer_step", kind="OPT"),
    # DualPipe's parts of a pass, as in DeepSeek's published traces: attn(F), mlp(B), mlp(W)
    Rule(PLAIN, r"(?:attn|mlp)\((?P<kind>[FBW])\)"),
    Rule(PLAIN, rf"(?i:step|iteration|iter)[ _#-]?(?P<step>{N})", "step"),
)


def user_rules(marker: str) -> list[Rule]:
    """The rules of one --marker."""
    pattern, arrow, kind = marker.rpartition("=>")
    if arrow:
        return [_user_rule(pattern.strip(), kind.strip())]
    path = Path(marker)
    try:
        content = read_toml(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        what = f'"{marker[:100]}" is neither REGEX=>KIND nor a readable TOML file ({why})'
        raise UsageError(what, r"write it like 'fwd(?P<microbatch>\d+)=>F'", parameter="markers") from error
    entries = content.get("marker")
    if not isinstance(entries, list) or not all(isinstance(e, dict) and set(e) == {"pattern", "kind"} for e in entries):
        raise UsageError(f"{path} is not a file of marker rules", 'write tables [[marker]] with "pattern" and "kind"')
    return [_user_rule(str(entry["pattern"]), str(entry["kind"])) for entry in entries]


def _user_rule(pattern: str, kind: str) -> Rule:
    if kind not in _USER_KINDS:
        what = f'"{pattern[:100]}": there is no kind "{kind}"'
        raise UsageError(what, f"use one of {', '.join(_USER_KINDS)}", parameter="markers")
    role, value = _USER_KINDS[kind]
    rule = Rule(USER, pattern, role, value)
    try:
        alone, _ = (
            pl.Series([""]).str.extract_groups(p).struct.fields for p in (pattern, f"^(?:(?P<rule>{pattern}))$")
        )
    except pl.exceptions.ComputeError as error:
        reason = str(error).rpartition("error: ")[2].partition("\n")[0]
        raise UsageError(f'"{pattern[:100]}": invalid regular expression ({reason})', parameter="markers") from error
    if unknown := {name for name in alone if not name.isdecimal()} - set(NUMBERS):
        what = f'"{pattern[:100]}": unknown group {", ".join(sorted(unknown))}'
        raise UsageError(what, f"use {', '.join(NUMBERS)}", parameter="markers")
    return rule


def as_given(rule: Rule) -> str:
    """A rule of the user as --marker takes it."""
    kind = next(name for name, value in _USER_KINDS.items() if value == (rule.role, rule.kind))
    return f"{rule.pattern}=>{kind}"
