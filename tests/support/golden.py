"""The golden orders of schedules, as the generators of profiles take them."""

import re
from pathlib import Path

from samples.generators.pipeline import Operation

SCHEDULES = Path(__file__).resolve().parents[1] / "golden" / "schedules"
KINDS = {"F": "F", "B": "B", "I": "B", "W": "W"}


def orders(name: str) -> list[list[Operation]]:
    """The operations of each stage in the golden file `name`."""
    rows = (SCHEDULES / "orders" / f"{name}.csv").read_text().splitlines()
    return [[_operation(text, len(rows)) for text in row.split(",")] for row in rows]


def _operation(text: str, stages: int) -> Operation:
    halves = re.findall(r"(\d+)([FBIW])(\d+)", text)
    numbers = [(KINDS[kind], int(microbatch), int(part) // stages) for part, kind, microbatch in halves]
    if len(numbers) == 1:
        return Operation(*numbers[0])
    (_, forward, chunk), (_, backward, chunk_b) = numbers
    return Operation("FB", forward, chunk, backward, chunk_b)
