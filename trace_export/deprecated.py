"""Functions of version 0.1 that say what they are now; they go with version 0.3."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from trace_export import api
from trace_export.api import Exported, Reported

__all__ = ["Exported", "Reported", "export", "report", "save_baseline"]

Given = ParamSpec("Given")
Result = TypeVar("Result")


def _goes(function: Callable[Given, Result], instead: str) -> Callable[Given, Result]:
    @wraps(function)
    def call(*args: Given.args, **given: Given.kwargs) -> Result:
        what = f"trace_export.{function.__name__}() is now {instead}; version 0.3 removes it"
        warnings.warn(what, DeprecationWarning, stacklevel=2)
        return function(*args, **given)

    return call


export = _goes(api.export, "load().align().write()")
report = _goes(api.report, "load().align().report(), and write_report() or write_heat_map() of the run")
save_baseline = _goes(api.save_baseline, "load().align().save_baseline()")
