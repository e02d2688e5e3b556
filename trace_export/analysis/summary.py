"""A run in a few rows: what was read, how much of it, how sure its clocks are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.analysis.bubbles import step_bubbles
from trace_export.analysis.whole_steps import counted
from trace_export.errors import TraceExportError, path_text
from trace_export.model import Profile
from trace_export.units import duration

HOSTS_SHOWN = 16


@dataclass(frozen=True)
class Summary:
    """The facts of a run. `bubble` is the mean share of idle time in the steps (global definition), null without steps;
    it and `step_ns` are of the `whole_steps` (on all ranks), or where there is none, of all;
    `stages` counts the pipeline stages, `stage_origin` says how they are known."""

    hosts: list[str]
    kinds: list[str]
    ranks: int
    stages: int
    stage_origin: str
    steps: int
    whole_steps: int
    step_ns: int | None
    blocks: dict[str, int]
    bubble: float | None
    clocks: list[dict[str, object]]
    notes: list[dict[str, object]]
    failures: list[str]
    files: list[str]

    def json(self) -> str:
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2).decode()

    def rows(self) -> list[tuple[str, str]]:
        """Name and value as the terminal shows them."""
        blocks = ", ".join(f"{count} {kind}" for kind, count in self.blocks.items())
        rows = [
            ("hosts", f"{len(self.hosts)} ({_few(self.hosts)})"),
            ("source", ", ".join(self.kinds)),
            ("ranks", str(self.ranks)),
            ("stages", f"{self.stages} ({self.stage_origin})"),
            ("steps", self._steps() + (f", {duration(self.step_ns)} each (median)" if self.step_ns else "")),
            ("blocks", blocks),
        ]
        if self.bubble is not None:
            which = "whole steps" if 0 < self.whole_steps < self.steps else "steps"
            rows.append(("bubble", f"{self.bubble:.1%} of the {which} (first start to last end over all stages)"))
        rows += [("clock", _clock(clock)) for clock in self.clocks[:HOSTS_SHOWN]]
        if len(self.clocks) > HOSTS_SHOWN:
            rows.append(("clock", f"… and {len(self.clocks) - HOSTS_SHOWN} more hosts; --json lists them all"))
        warnings = sum(note["level"] == "warning" for note in self.notes)
        rows.append(("warnings", str(warnings + len(self.failures))))
        return rows

    def _steps(self) -> str:
        return str(self.steps) if self.whole_steps == self.steps else f"{self.steps} ({self.whole_steps} whole)"


def summarise(profile: Profile, failures: Sequence[TraceExportError] = (), files: Sequence[Path] = ()) -> Summary:
    """The summary of a profile that has been interpreted and aligned."""
    drawn = profile.ranks.join(profile.spans, on="rank", how="semi")
    all_steps = step_bubbles(profile)
    steps = counted(all_steps)
    named = pl.when(pl.col("kind").is_null()).then(pl.lit("other")).otherwise("kind").alias("kind")
    counts = profile.spans.select(named).group_by("kind").len().sort("kind")
    hosts = profile.hosts.join(drawn, on="host", how="semi").sort("machine")
    return Summary(
        hosts=hosts["label"].to_list(),
        kinds=drawn["kind"].unique().sort().to_list(),
        ranks=drawn.height,
        stages=drawn["stage"].n_unique(),
        stage_origin=", ".join(drawn["stage_origin"].drop_nulls().unique().sort()) or "unknown",
        steps=all_steps.height,
        whole_steps=int(all_steps["whole"].sum()),
        step_ns=_median(steps["end_ns"] - steps["start_ns"]),
        blocks=dict(counts.iter_rows()),
        bubble=float(value) if isinstance(value := steps["bubble"].mean(), float) else None,
        clocks=_clocks(profile),
        notes=[asdict(note) for note in profile.notes],
        failures=[str(error) for error in failures],
        files=[path_text(path) for path in files],
    )


def _clocks(profile: Profile) -> list[dict[str, object]]:
    """The rows of the table `clocks` with the label of their host, in the order of the machines."""
    hosts = profile.hosts.select("host", "label", "machine")
    return profile.clocks.join(hosts, on="host", how="left").sort("machine", "host").drop("machine").to_dicts()


def _median(values: pl.Series) -> int | None:
    middle = values.median()
    return round(middle) if isinstance(middle, float | int) else None


def _few(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f", … {len(names) - most} more" if len(names) > most else "")


def clock_method(clock: Mapping[str, Any]) -> str:
    """How a host's clock (a row of `CLOCKS`) was corrected: user offset +3.2 ms, p2p+collective, component 2."""
    parts = [] if clock["user_offset_ns"] is None else [f"user offset {duration(clock['user_offset_ns'], sign=True)}"]
    found = {"fitted": clock["evidence"], "confirmed": f"wall, confirmed by {clock['evidence']}"}
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


def _clock(clock: Mapping[str, Any]) -> str:
    """One host's correction, as in: node1: p2p, offset +3.2 ms, drift +12 ppm, ±1.2 µs (1 sd), certain within 40 µs."""
    parts = [f"{clock['label'] or clock['host']}: {clock_method(clock)}"]
    offset, drift, deviation, bound = (clock[k] for k in ("offset_ns", "drift", "sd_ns", "bound_ns"))
    if isinstance(offset, int) and offset:
        parts.append(f"offset {duration(offset, sign=True)}")
    if isinstance(drift, float) and drift:
        parts.append(f"drift {drift * 1e6:+.2f} ppm")
    if isinstance(deviation, float):
        parts.append(f"±{duration(deviation)} (1 sd)")
    if isinstance(bound, float):
        parts.append(f"certain within {duration(bound)}")
    return ", ".join(parts)
