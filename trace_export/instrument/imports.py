"""Calls a function as soon as a module has been imported, without importing it: the user's program decides that.

Whatever goes wrong here leaves the import as it would have been, and the module unpatched.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

from trace_export.instrument import marks

Patch = Callable[[ModuleType], None]


class _Finder:
    """Stands first among the finders of `sys.meta_path`; finds the awaited modules by asking the others."""

    def __init__(self) -> None:
        self.awaited: dict[str, Patch] = {}
        self._inside = threading.local()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The other finders' spec with a loader that patches; None, so that they are asked again, where that fails."""
        if name not in self.awaited or getattr(self._inside, "name", None) == name:
            return None
        self._inside.name = name
        try:
            spec = importlib.util.find_spec(name)
            if spec is None or not hasattr(spec.loader, "exec_module"):
                return None
            spec.loader = cast(Any, _Loader(spec.loader, self.awaited[name]))
            return spec
        except BaseException as error:  # raised again, by the finder that it came from, where it is not ours
            marks.raise_if_users(error)
            return None
        finally:
            self._inside.name = None


class _Loader:
    """Stands in for a module's loader until the module runs, which then finds its own loader in its place.

    Nothing is set on the loader itself: it may take no attributes, or load other modules too.
    """

    def __init__(self, loader: Any, patch: Patch) -> None:
        self._loader, self._patch = loader, patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        with suppress(Exception):  # an extension's module may forbid it
            module.__loader__ = self._loader
            if module.__spec__ is not None:
                module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._patch(module)


_finder = _Finder()


def when_imported(name: str, patch: Patch) -> None:
    """`patch(module)`, now if the module is there, else right after its import. `patch` must not raise."""
    module = sys.modules.get(name)
    if module is not None:
        patch(module)
        return
    _finder.awaited[name] = patch
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
