"""`clock_alignment.json`: the correction of every host with its reasons, to be read again by `--align FILE`.

    {"t0_ns": T, "hosts": {NAME: {"offset_ns": a, "drift": b, ...}}}      corrected = t - a - b * (t - T)

A host whose clock was set has `steps`: the corrections from a time of its clock on, each until the next. A file with
only this (made by hand or by another tool) is enough. `reference_ns`, if given, is the time at which this program
rounds; it makes the second use exact to the nanosecond.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.clocks.apply import offset_at, uncorrected
from trace_export.errors import SourceError
from trace_export.files import read_file
from trace_export.model import CLOCKS, Profile, conform
from trace_export.units import LIMIT_NS

MOST_BYTES = 64 << 20
MOST_DRIFT = 0.5
_REMEDY = "give the clock_alignment.json of an export"


def content(profile: Profile) -> dict[str, Any]:
    """The content of the file as plain values: the correction of each host, and the notes."""
    clocks = profile.clocks
    referenced = clocks.filter(pl.col("reference_ns") != 0)["reference_ns"].to_list()
    t0 = min(referenced, default=0)
    return {
        "format": "trace_export clock alignment 2",
        "t0_ns": t0,
        "formula": "corrected = t - offset_ns - drift * (t - t0_ns)",
        "hosts": {row["host"]: _host(row, t0) for row in clocks.iter_rows(named=True)},
        "notes": [note.text for note in profile.notes if note.code.startswith("clock-")],
    }


def write(profile: Profile, path: Path) -> None:
    """Writes the content to `path`."""
    path.write_bytes(orjson.dumps(content(profile), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _host(row: dict[str, Any], t0: int) -> dict[str, Any]:
    reference = row["reference_ns"] or t0
    return {
        "offset_ns": offset_at(t0, row["offset_ns"], row["drift"], reference),
        "drift": row["drift"],
        "reference_ns": reference,
        "status": row["status"],
        "evidence": row["evidence"],
        "component": row["component"],
        "user_offset_ns": row["user_offset_ns"],
        "sd_us": _us(row["sd_ns"]),
        "bound_us": _us(row["bound_ns"]),
        "unseen_step_us": _us(row["unseen_step_ns"]),
        "messages": row["messages"],
        "collectives": row["collectives"],
        **({"steps": row["steps"]} if row["steps"] else {}),
    }


def _us(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1e3, 3)


def read(path: Path, profile: Profile) -> pl.DataFrame:
    """The clocks (schema `CLOCKS`) of the hosts of `profile` as the file at `path` has them.

    A host that the file does not name keeps its wall clock. Raises SourceError where the file is not what it should be.
    """
    document = _load(path)
    t0 = _whole(path, "t0_ns", document.get("t0_ns", 0))
    hosts = document.get("hosts")
    if not isinstance(hosts, dict) or not all(isinstance(v, dict) for v in hosts.values()):
        raise SourceError(path, 'has no "hosts"', "it must name each host's offset_ns and drift")
    wall = uncorrected(profile.ranks, "wall")
    rows = [_clock(path, host, hosts[host], t0) for host in wall["host"] if host in hosts]
    named = conform(pl.DataFrame(rows, infer_schema_length=None), CLOCKS) if rows else wall.clear()
    return pl.concat([named, wall.join(named, on="host", how="anti")]).sort("host")


def _clock(path: Path, host: str, entry: dict[str, Any], t0: int) -> dict[str, Any]:
    """The row of `CLOCKS` that an entry of the file stands for. Only offset_ns must be there."""

    def named(name: str) -> str:
        return f'{name} of "{host}"'

    drift = entry.get("drift", 0.0)
    if not isinstance(drift, int | float) or isinstance(drift, bool) or not abs(drift) < MOST_DRIFT:
        raise SourceError(path, f"{named('drift')} is {_shown(drift)}", "it must be a small number such as 1.2e-5")
    reference = _whole(path, named("reference_ns"), entry.get("reference_ns", t0))
    if "offset_ns" not in entry:
        raise SourceError(path, f'the host "{host}" has no offset_ns', "it must be a whole number of nanoseconds")
    offset = _whole(path, named("offset_ns"), entry["offset_ns"])
    clock = {
        "host": host,
        "status": "file",
        "offset_ns": _whole(path, named("offset_ns"), offset_at(reference, offset, drift, t0)),
        "drift": float(drift),
        "reference_ns": reference,
    }
    for name in ("sd", "bound", "unseen_step"):
        if (value := entry.get(f"{name}_us")) is not None:
            clock[f"{name}_ns"] = _deviation(path, named(f"{name}_us"), value)
    for name in ("messages", "collectives"):
        if (value := entry.get(name)) is not None:
            clock[name] = _whole(path, named(name), value, "it must be a whole number")
    if steps := entry.get("steps"):
        clock["steps"] = [_step(path, named("steps"), step) for step in steps]
    return clock


def _step(path: Path, name: str, step: Any) -> dict[str, Any]:
    """The correction from a later time on."""
    if not isinstance(step, dict) or not isinstance(step.get("drift"), int | float):
        raise SourceError(path, f"{name} has {_shown(step)}", _REMEDY)
    since, offset, reference = (
        _whole(path, f"{key} in {name}", step.get(key)) for key in ("from_ns", "offset_ns", "reference_ns")
    )
    return {"from_ns": since, "offset_ns": offset, "drift": float(step["drift"]), "reference_ns": reference}


def _load(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(read_file(path, MOST_BYTES))
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}", _REMEDY) from error
    except orjson.JSONDecodeError as error:
        raise SourceError(path, f"is not JSON: {error}", _REMEDY) from error
    if not isinstance(document, dict):
        raise SourceError(path, "is not a clock alignment", _REMEDY)
    return document


def _whole(path: Path, name: str, value: Any, remedy: str = "it must be a whole number of nanoseconds") -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LIMIT_NS:
        raise SourceError(path, f"{name} is {_shown(value)}", remedy)
    return round(value)


def _deviation(path: Path, name: str, value: Any) -> float:
    """A number of µs that is not negative, in ns."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LIMIT_NS:
        raise SourceError(path, f"{name} is {_shown(value)}", "it must be a number of microseconds")
    return float(value) * 1e3


def _shown(value: Any) -> str:
    """A value of the file, short enough for a sentence."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
