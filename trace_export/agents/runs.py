"""The runs that a server answers for: the folders and files that it was started with, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from trace_export import api
from trace_export.errors import UsageError, path_text
from trace_export.run import Run


class Runs:
    """Names of runs and what was read of them. A run is read and aligned when it is first asked for."""

    def __init__(self, places: Sequence[Path]) -> None:
        """`places`: a folder or file for each run. Its name is the run's, with a number where two have one name."""
        self.places: dict[str, Path] = {}
        for place in places:
            if not place.exists():
                raise UsageError(f"there is no {place}", "name the folders of profiles that may be read")
            name = base = path_text(place.resolve().name)
            number = 1
            while name in self.places:
                number += 1
                name = f"{base}-{number}"
            self.places[name] = place
        self._read: dict[str, Run] = {}
        self._lock = Lock()

    def place(self, name: str) -> Path:
        """Where a run lies. Raises UsageError for any other name."""
        if name not in self.places:
            raise UsageError(f'there is no run "{name}"', f"choose one of {', '.join(self.places)}", parameter="run")
        return self.places[name]

    def run(self, name: str, steps: str = "all") -> Run:
        """The selected `steps` of the aligned run."""
        place = self.place(name)
        with self._lock:
            if name not in self._read:
                self._read[name] = api.load(place).align()
            return self._read[name].select(steps=steps)
