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


def _homes() -> dict[str, str]:
    """The module of each public name."""
    import ast
    from importlib.resources import files

    stub = ast.parse(files(__name__).joinpath("__init__.pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("trace-export")
    if name == "__all__":
        return sorted([*_homes(), "__version__"])
    homes = {} if name.startswith("_") else _homes()
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(homes[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*_homes(), "__version__"])
