"""How a host's clock was corrected, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trace_export.model import Profile
from trace_export.units import duration


def clock_method(clock: Mapping[str, Any]) -> str:
    """How a host's clock (a row of `CLOCKS`) was corrected: user offset +3.2 ms, p2p+collective, component 2."""
    parts = [] if clock["user_offset_ns"] is None else [f"user offset {duration(clock['user_offset_ns'], sign=True)}"]
    found = {
        "fitted": clock["evidence"], "confirmed": f"wall, confirmed by {clock['evidence']}",
        "single-host": "the only host, nothing to align", "none": "as recorded",
    }  # fmt: skip
    parts.append(found.get(clock["status"], clock["status"]) or "uncorrected")
    if clock["component"] is not None:
        parts.append(f"component {clock['component']}")
    return ", ".join(parts)


def clock_texts(profile: Profile) -> dict[str, str]:
    """Host → how its clock was corrected and the error that is left, with all digits."""
    texts = {}
    for clock in profile.clocks.iter_rows(named=True):
        words = [clock_method(clock)]
        if clock["offset_ns"]:
            words.append(f"moved by {-clock['offset_ns']} ns")
        if clock["drift"]:
            words.append(f"drift {clock['drift'] * 1e6:.3g} ppm")
        if clock["sd_ns"] is not None:
            words.append(f"error {clock['sd_ns'] / 1000:.3g} µs (standard deviation)")
        if clock["bound_ns"] is not None:
            words.append(f"at most {clock['bound_ns'] / 1000:.3g} µs")
        texts[clock["host"]] = ", ".join(words)
    return texts
