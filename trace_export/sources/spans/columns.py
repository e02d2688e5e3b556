"""`--columns`: which column of a table means what, and in which unit its times are."""

from __future__ import annotations

from dataclasses import dataclass

from trace_export.errors import UsageError

FIELDS = ("rank", "kind", "start", "end", "duration", "step", "stage", "dp", "microbatch", "chunk", "host")
TIMES = ("start", "end", "duration")
NEEDED = ("rank", "kind", "start")
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
EXAMPLE = "rank=rank,kind=optype,start=start_ts:s,end=end_ts:s"
PARAMETER = "columns"


@dataclass(frozen=True)
class Columns:
    """`names`: field → column. `unit_ns`: the nanoseconds of the unit of all times; `has_unit`: whether it is given."""

    names: tuple[tuple[str, str], ...]
    unit_ns: int
    has_unit: bool = True

    @staticmethod
    def parse(text: str) -> Columns:
        """`rank=rank,kind=optype,start=start_ts:s,end=…`. Raises UsageError."""
        names: dict[str, str] = {}
        units: dict[str, str] = {}
        given = False
        for part in filter(None, (word.strip() for word in text.split(","))):
            field, equals, column = part.partition("=")
            if not equals or not column or field not in FIELDS:
                what = f'"{part[:60]}" is not FIELD=COLUMN with a field of {", ".join(FIELDS)}'
                raise UsageError(what, f"write it like {EXAMPLE}", parameter=PARAMETER)
            if field in names:
                raise UsageError(f"{field} is given twice", "give each field once", parameter=PARAMETER)
            if field in TIMES:
                column, has_unit, unit = column.rpartition(":") if ":" in column else (column, "", "ns")
                if unit not in UNITS:
                    what = f'"{unit[:20]}" is not a unit of time'
                    raise UsageError(what, f"choose {', '.join(UNITS)}", parameter=PARAMETER)
                units[field], given = unit, given or bool(has_unit)
            names[field] = column
        lacking = [field for field in NEEDED if field not in names]
        if not lacking and ("end" in names) == ("duration" in names):
            what = "both end and duration are given" if "end" in names else "neither end nor duration is given"
            raise UsageError(what, "give one of them", parameter=PARAMETER)
        if lacking:
            raise UsageError(f"{lacking[0]} is not given", f"write it like {EXAMPLE}", parameter=PARAMETER)
        if len(set(units.values())) > 1:
            mixed = ", ".join(f"{field} in {unit}" for field, unit in units.items())
            raise UsageError(f"times are in different units ({mixed})", "give all in one unit", parameter=PARAMETER)
        return Columns(tuple(names.items()), UNITS[units["start"]], given)
