"""Calls a function as soon as a module has been imported, without importing it: the user's program decides that."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


class _Watch:
    """Stands first among the finders; finds the awaited modules by asking the others."""

    def __init__(self) -> None:
        self.awaited: dict[str, Patch] = {}
        self._inside = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self.awaited or getattr(self._inside, "name", None) == name:
            return None
        self._inside.name = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._inside.name = None
        if spec is None or spec.loader is None:
            return None
        self._hook(spec.loader, self.awaited[name])
        return spec

    @staticmethod
    def _hook(loader: Any, patch: Patch) -> None:
        """Shadows `exec_module` on this one loader object, so that the loader's type and abilities stay as they are."""
        execute = loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            patch(module)

        loader.exec_module = execute_and_patch


_watch = _Watch()


def when_imported(name: str, patch: Patch) -> None:
    """`patch(module)`, now if the module is there, else right after its import. `patch` must not raise."""
    module = sys.modules.get(name)
    if module is not None:
        patch(module)
        return
    _watch.awaited[name] = patch
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)
