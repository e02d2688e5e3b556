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

    def __init__(self, paths: Sequence[Path]) -> None:
        """`paths`: a folder or file for each run. Its name is the run's, with a number where two have one name."""
        self.paths: dict[str, Path] = {}
        for path in paths:
            if not path.exists():
                raise UsageError(f"there is no {path}", "name the folders of profiles that may be read")
            name = base = path_text(path.resolve().name)
            number = 1
            while name in self.paths:
                number += 1
                name = f"{base}-{number}"
            self.paths[name] = path
        self._read: dict[str, Run] = {}
        self._lock = Lock()

    def path(self, name: str) -> Path:
        """Where a run lies. Raises UsageError for any other name."""
        if name not in self.paths:
            raise UsageError(f'there is no run "{name}"', f"choose one of {', '.join(self.paths)}", parameter="run")
        return self.paths[name]

    def run(self, name: str, steps: str = "all") -> Run:
        """The selected `steps` of the aligned run."""
        path = self.path(name)
        with self._lock:
            if name not in self._read:
                self._read[name] = api.load(path).align()
            return self._read[name].select(steps=steps)
