"""The words that an option takes, each list once: for types, for checks and for the help of the command line."""

from __future__ import annotations

from typing import Literal

Align = Literal["auto", "wall", "none", "strict"]
"""How hosts come onto one clock."""
Detail = Literal["spans", "comm", "kernels"]
"""What is drawn below the blocks of a rank: nothing, its communication, all its device tasks."""
Tracks = Literal["stage", "rank"]
"""What gets a track: the first rank of each stage, or every rank."""
ColorBy = Literal["kind", "microbatch", "rank", "none"]
"""What a block's colour shows."""
CostName = Literal["forward", "backward", "weight", "transfer", "overlap"]
"""The durations of a simulation, as in `schedules.simulate.Costs`."""
Infer = Literal["auto", "off", "only"]
"""Whether blocks are found from launches: where no pass is named, never, or whatever is named."""
Format = str
"""The name of an output format, one of `writers.formats`."""
HeatMapFormat = Literal["svg", "png"]
"""Formats of the heat map of the slowdown."""
Table = Literal["blocks", "messages", "ranks", "steps", "critical_path"]
"""Tables that `--format parquet` writes, see `writers.tables`."""
Theme = Literal["auto", "light", "dark", "print", "grayscale", "colorblind"]
"""The colours of a picture."""
Legend = Literal["above", "below", "none"]
"""Where a picture says what its colours mean."""
OverviewFormat = Literal["html", "parquet"]
"""What an overview is written as: one page, or its tables."""
RunChoice = int | Literal["latest", "all"]
"""A run by its number (1 is the oldest), the newest complete one, or all."""
