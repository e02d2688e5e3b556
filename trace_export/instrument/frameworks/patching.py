"""How a framework's function becomes a block: one takes its place that marks, calls it and returns its result."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trace_export.instrument import marks
from trace_export.instrument.marks import Mark

_PATCHED = "__trace_export__"


class UnknownVersion(Exception):
    """The framework lacks what a patch needs."""


def guarded(framework: str, patch: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """`patch` that never raises: an unknown version is a sentence in the log, and the run goes on unmarked."""

    def attempt(module: ModuleType) -> None:
        try:
            patch(module)
        except BaseException as error:
            marks.raise_if_users(error)
            version = getattr(sys.modules.get(framework), "__version__", "of an unknown version")
            marks.log.warning(
                "trace_export: %s %s is not one it knows (%s: %s), so its blocks are not marked; "
                "mark them with trace_export.instrument.forward() and backward()",
                framework,
                version,
                module.__name__,
                error,
            )

    return attempt


def replace(owner: Any, name: str, around: Callable[[Any], Any], needs: tuple[str, ...] = ()) -> None:
    """`owner.name` becomes `around(owner.name)`, once. Raises UnknownVersion when it or a parameter is not there."""
    attribute = inspect.getattr_static(owner, name, None)
    original = attribute.__func__ if isinstance(attribute, (classmethod, staticmethod)) else attribute
    if not callable(original):
        raise UnknownVersion(f"{name} is missing")
    missing = [p for p in needs if p not in inspect.signature(original).parameters]
    if missing:
        raise UnknownVersion(f"{name} has no parameter {missing[0]}")
    if hasattr(original, _PATCHED):
        return
    replaced = functools.wraps(original)(around(original))
    setattr(replaced, _PATCHED, True)
    setattr(owner, name, type(attribute)(replaced) if original is not attribute else replaced)


def block(
    describe: Callable[..., Mark | None], done: Callable[[Mark, Any], None] | None = None
) -> Callable[[Any], Any]:
    """For `replace`: the call is the block that `describe` names from its arguments (None: no block).

    `done(mark, result)` sees what the call returned.
    """

    def around(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            mark = safely(describe, *args, **kwargs)
            opened = marks.begin(mark) if mark is not None else None
            try:
                result = function(*args, **kwargs)
            finally:
                marks.end(opened)
            if done is not None and mark is not None:
                safely(done, mark, result)
            return result

        return call

    return around


def schedule_pass(prepare: Callable[..., None] | None = None) -> Callable[[Any], Any]:
    """For `replace`: the call is one pass of a schedule over a batch, so a step. `prepare` gets its arguments."""

    def around(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            safely(marks.begin_pass)
            if prepare is not None:
                safely(prepare, *args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                marks.close(lingering_only=True)

        return call

    return around


def argument(function: Any, name: str) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Gets `function`'s parameter `name` from a call's arguments; None where the call or the version has none."""
    parameters = list(inspect.signature(function).parameters)
    index = parameters.index(name) if name in parameters else sys.maxsize

    def get(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[index] if index < len(args) else kwargs.get(name)

    return get


class InFlight:
    """Which micro-batch and chunk an object that a forward returned belongs to, for the backward that is given it.

    `last` is what was recalled last, so the backward that runs or ran last.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int | None, int | None]] = {}
        self.last: tuple[int | None, int | None] = (None, None)

    def clear(self) -> None:
        self._numbers.clear()
        self.last = (None, None)

    def remember(self, thing: Any, microbatch: int | None, chunk: int | None) -> None:
        self._numbers[id(_first(thing))] = (microbatch, chunk)

    def recall(self, thing: Any, keep: bool = False) -> tuple[int | None, int | None]:
        """(None, None) for an object that no forward returned."""
        key = id(_first(thing))
        numbers = self._numbers.get(key) if keep else self._numbers.pop(key, None)
        self.last = numbers or (None, None)
        return self.last


def _first(thing: Any) -> Any:
    while isinstance(thing, (list, tuple)) and thing:
        thing = thing[0]
    return thing


def safely(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if marks.state.off:
        return None
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        marks.give_up(error)
        return None
