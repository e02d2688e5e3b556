"""Profiles of a pipeline-parallel training run → one chart on one clock.

    import trace_export
    run = trace_export.load("logs").align()
    run.spans                                  # every block, a Polars frame
    run.report().steps                         # bubbles, per step
    run.write("chart.pftrace")

The public names are those that `__init__.pyi` imports. Each is loaded when it is first used, so that a training script
may import `trace_export.instrument` without the packages that drawing needs.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` has it too, and would be most of what is loaded before Ctrl-C is caught
if TYPE_CHECKING:
    from typing import Any


_HOMES: dict[str, str] = {}


def _homes() -> dict[str, str]:
    """The module of each public name. Python also asks for the name of each module that is imported from here."""
    if not _HOMES:
        import ast
        from pathlib import Path

        stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
        imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
        _HOMES.update({alias.name: str(node.module) for node in imports for alias in node.names})
    return _HOMES


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("trace-export")
    if name == "__all__":
        return sorted([*_homes(), "__version__"])
    homes = {} if name.startswith("_") else _homes()
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(homes[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*_homes(), "__version__"])
