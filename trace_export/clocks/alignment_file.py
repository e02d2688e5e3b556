"""`clock_alignment.json`: the correction of every host with its reasons, to be read again by `--align FILE`.

    {"t0_ns": T, "hosts": {NAME: {"offset_ns": a, "drift": b, ...}}}      corrected = t - a - b * (t - T)

A file that says only this (made by hand or by another tool) is as good. `reference_ns`, where given, is the time at
which this program rounds; it makes the second use exact to the nanosecond.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import polars as pl

from trace_export.errors import SourceError
from trace_export.model import CLOCKS, Profile, conform

MOST_BYTES = 64 << 20


def content(profile: Profile) -> dict[str, Any]:
    """What the file says, as plain values: the correction of each host, the delays that are left, what was noted."""
    clocks = profile.clocks
    referenced = clocks.filter(pl.col("reference_ns") != 0)["reference_ns"].to_list()
    t0 = min(referenced, default=0)
    return {
        "format": "trace_export clock alignment 1",
        "t0_ns": t0,
        "formula": "corrected = t - offset_ns - drift * (t - t0_ns)",
        "hosts": {row["host"]: _host(row, t0) for row in clocks.iter_rows(named=True)},
        "delays": _delays(profile).to_dicts(),
        "notes": [note.text for note in profile.notes if note.code.startswith("clock-")],
    }


def write(profile: Profile, path: Path) -> None:
    """Writes the content to `path`."""
    path.write_bytes(orjson.dumps(content(profile), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _delays(profile: Profile) -> pl.DataFrame:
    """How long after its sender had ended each message's receiver ended, per pair of hosts, on the corrected clock."""
    host = profile.ranks.select("rank", "host").unique("rank")
    delay = (pl.col("recv_end_ns") - pl.col("send_end_ns")) / 1e3
    quantiles = {"min": 0.0, "q05": 0.05, "median": 0.5, "q95": 0.95}
    return (
        profile.messages.join(host.rename({"rank": "src_rank", "host": "from"}), on="src_rank")
        .join(host.rename({"rank": "dst_rank", "host": "to"}), on="dst_rank")
        .filter(pl.col("from") != pl.col("to"))
        .group_by("from", "to")
        .agg(pl.len().alias("messages"), *(delay.quantile(q).round(3).alias(f"{n}_us") for n, q in quantiles.items()))
        .sort("from", "to")
    )


def _host(row: dict[str, Any], t0: int) -> dict[str, Any]:
    reference = row["reference_ns"] or t0
    return {
        "offset_ns": row["offset_ns"] + round(row["drift"] * (t0 - reference)),
        "drift": row["drift"],
        "reference_ns": reference,
        "method": row["method"],
        "sd_us": _us(row["sd_ns"]),
        "bound_us": _us(row["bound_ns"]),
        "messages": row["messages"],
        "collectives": row["collectives"],
    }


def _us(ns: float | None) -> float | None:
    return None if ns is None else round(ns / 1e3, 3)


def read(path: Path, profile: Profile) -> pl.DataFrame:
    """The clocks (schema `CLOCKS`) of the hosts of `profile` as the file at `path` has them.

    A host that the file does not name keeps its wall clock. Raises SourceError when the file is not what it should be.
    """
    known = _load(path)
    t0 = _whole(path, known, "t0_ns")
    hosts = known.get("hosts")
    if not isinstance(hosts, dict) or not all(isinstance(v, dict) for v in hosts.values()):
        raise SourceError(path, 'has no "hosts"', "it must name each host's offset_ns and drift")
    rows = []
    for host in profile.ranks["host"].drop_nulls().unique().sort():
        if host not in hosts:
            rows.append({"host": host, "method": "wall", "offset_ns": 0, "drift": 0.0, "reference_ns": 0})
            continue
        said = hosts[host]
        drift = said.get("drift", 0.0)
        if not isinstance(drift, int | float) or isinstance(drift, bool) or not abs(drift) < 0.5:
            raise SourceError(path, f'the drift of "{host}" is {drift!r}', "it must be a small number such as 1.2e-5")
        reference = _whole(path, said, "reference_ns") if "reference_ns" in said else t0
        offset = _whole(path, said, "offset_ns") - round(drift * (t0 - reference))
        rows.append({"host": host, "method": "file", "offset_ns": offset, "drift": float(drift),
                     "reference_ns": reference, "sd_ns": _ns(said, "sd_us"), "bound_ns": _ns(said, "bound_us"),
                     "messages": said.get("messages"), "collectives": said.get("collectives")})  # fmt: skip
    return conform(pl.DataFrame(rows, infer_schema_length=None), CLOCKS)


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SourceError(path, "is too large for a clock alignment", "give the clock_alignment.json of an export")
        known = orjson.loads(path.read_bytes())
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise SourceError(path, f"is not JSON: {error}", "give the clock_alignment.json of an export") from error
    if not isinstance(known, dict):
        raise SourceError(path, "is not a clock alignment", "give the clock_alignment.json of an export")
    return known


def _whole(path: Path, said: dict[str, Any], name: str) -> int:
    value = said.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**62:
        raise SourceError(path, f"{name} is {value!r}", "it must be a whole number of nanoseconds")
    return round(value)


def _ns(said: dict[str, Any], name: str) -> float | None:
    value = said.get(name)
    return float(value) * 1e3 if isinstance(value, int | float) else None
