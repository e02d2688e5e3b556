"""The files of Primus: `pp_rank_N.json` for each stage, beside `config.json`."""

from __future__ import annotations

import os
import re
from pathlib import Path

STAGE = re.compile(r"pp_rank_(\d{1,6})\.json")


def stages(folder: Path) -> list[Path]:
    """The files of the stages in `folder`."""
    return sorted(path for path in folder.iterdir() if STAGE.fullmatch(path.name))


def state(folder: Path) -> int:
    """A number that is another one when one of these files has changed: of their names, sizes and times of change."""
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if STAGE.fullmatch(entry.name)]
    known = []
    for entry in found:
        try:
            status = entry.stat()
        except OSError:  # a link that leads nowhere
            known.append((entry.name, -1, -1))
        else:
            known.append((entry.name, status.st_size, status.st_mtime_ns))
    return hash(tuple(sorted(known)))
