"""The published formulas of a schedule's idle time per rank."""

from __future__ import annotations

from dataclasses import dataclass

from trace_export.schedules.schedule import Schedule


@dataclass(frozen=True)
class ClosedForm:
    """The published formula of a schedule's idle time per rank (the global bubble): its text, and its value in
    nanoseconds. F, B, I, W are the mean durations per micro-batch and rank, all chunks together; p stages, v chunks."""

    formula: str
    idle_ns: float


def closed_form(s: Schedule, forward: float, backward: float, inputs: float, weights: float) -> ClosedForm | None:
    """The idle time per rank by the published formula, for durations per micro-batch and rank; None if there is no
    formula. The formulas hold without transfers; those of split backwards if W is no longer than F and I."""
    p, v = s.stages, s.chunks
    fill_and_drain = (p - 1) * (forward + backward)
    split = (p - 1) * (forward + inputs - weights)
    dual = forward + 2 * backward - 3 * weights  # F&B + B - 3W, where nothing is gained by the overlap
    formulas: dict[str, tuple[str, float]] = {
        # GPipe: arXiv 1811.06965; 1F1B: arXiv 2104.04473, section 2.2.1. What Eager 1F1B gains are transfers.
        "gpipe": ("(p-1)(F+B)", fill_and_drain),
        "1f1b": ("(p-1)(F+B)", fill_and_drain),
        "eager-1f1b": ("(p-1)(F+B)", fill_and_drain),
        # arXiv 2104.04473, section 2.2.2
        "interleaved": ("(p-1)(F+B)/v", fill_and_drain / v),
        "interleaved-paddle": ("(p-1)(F+B)/v", fill_and_drain / v),
        # arXiv 2401.10241, table 1, where B is the gradient of the input; interleaving divides it as it does 1F1B's.
        "zb-h1": ("(p-1)(F+I-W)", split),
        "interleaved-zb1p": ("(p-1)(F+I-W)/v", split / v),
        # The papers (arXiv 2401.10241 and 2405.15362) count the rank's own window, which has next to no idle time. Over
        # all ranks the skew of their windows remains: these two are that of the simulated orders, for any F, I, W.
        "zb-h2": ("(p-1)F", (p - 1) * forward),
        "zb-v": ("(p-1)I/2", (p - 1) * inputs / 2),
        # arXiv 2412.19437, table 2: (PP/2-1)(F&B+B-3W); DualPipeV has PP = 2p halves of a stage.
        "dualpipe": ("(p/2-1)(F+2B-3W)", (p / 2 - 1) * dual),
        "dualpipev": ("(p-1)(F+2B-3W)/2", (p - 1) * dual / 2),
    }
    formula = formulas.get(s.name)
    return None if formula is None else ClosedForm(*formula)
