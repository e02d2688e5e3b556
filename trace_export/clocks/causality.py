"""Does any message arrive before it was sent?"""

from __future__ import annotations

import polars as pl

SLACK_US = 5.0
"""What the ends of one transfer may contradict each other by: device clocks, reading noise."""


def violations(messages: pl.DataFrame) -> int:
    """How many messages arrive before they were sent."""
    return int((messages["recv_end_ns"] < messages["send_start_ns"]).sum())
