"""The marks for one's own training loop: each is a context manager and a decorator.

with forward(microbatch=3, chunk=0):
    loss = model(batch)

@backward(microbatch="i")
def run_backward(loss, i): ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from trace_export.instrument import marks
from trace_export.instrument.marks import Mark, Open

Number = Any
"""An int, None where unknown, or for a decorator the name of the function's parameter that holds it."""
_Function = TypeVar("_Function", bound=Callable[..., Any])
_mark = functools.partial(tuple.__new__, Mark)
"""A Mark of all its fields, in half the time that a NamedTuple takes to make itself."""


class Block:
    """A block of pipeline work. As a decorator, a number given as text is the name of the function's parameter."""

    __slots__ = ("_mark", "_open")

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._open: list[Open | None] = []  # a decorated function may call itself

    def __enter__(self) -> Block:
        self._open.append(marks.begin(self._mark))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        marks.end(self._open.pop())

    def __call__(self, function: _Function) -> _Function:
        """`function` with each call marked. Raises TypeError when it has no parameter of a given name."""
        signature = inspect.signature(function)
        named = {key: name for key, name in self._mark._asdict().items() if key != "kind" and isinstance(name, str)}
        for name in named.values():
            if name not in signature.parameters:
                raise TypeError(f"{function.__name__}() has no parameter {name} to take the number from")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            mark = self._mark
            if named:
                given = signature.bind(*args, **kwargs)
                given.apply_defaults()
                mark = mark._replace(**{key: given.arguments[name] for key, name in named.items()})
            with Block(mark):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


def forward(microbatch: Number = None, chunk: Number = None, stage: Number = None) -> Block:
    """A forward pass of one micro-batch (from 0) through the model chunk `chunk` (from 0) of this rank.

    Without `microbatch` it is numbered by order when the profile is read. `stage` is the rank's place in its pipeline
    and needs to be given once.
    """
    return Block(_mark(("F", microbatch, chunk, None, None, stage, None)))


def backward(microbatch: Number = None, chunk: Number = None, stage: Number = None) -> Block:
    """A backward pass; only that of the inputs where `weight` blocks hold the rest. Numbers as in `forward`."""
    return Block(_mark(("B", microbatch, chunk, None, None, stage, None)))


def weight(microbatch: Number = None, chunk: Number = None, stage: Number = None) -> Block:
    """The weight gradients of one micro-batch, or of several when `microbatch` is left out. Numbers as in `forward`."""
    return Block(_mark(("W", microbatch, chunk, None, None, stage, None)))


def forward_backward(
    microbatch: Number = None,
    chunk: Number = None,
    microbatch_b: Number = None,
    chunk_b: Number = None,
    stage: Number = None,
) -> Block:
    """The forward of one micro-batch overlapped with the backward of another (`…_b`), as in DualPipe."""
    return Block(_mark(("FB", microbatch, chunk, microbatch_b, chunk_b, stage, None)))


def optimizer() -> Block:
    """The optimizer's step."""
    return Block(Mark("OPT"))


class Step:
    """A step of the training run: its number goes into every block inside.

    Without one, `auto` counts the passes of the schedule from 0, evaluations among them.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> Step:
        self._before = marks.state.step
        marks.set_step(self._number)
        self._range = marks.begin_range(Mark("STEP"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        marks.close(lingering_only=True)
        marks.end_range(self._range)
        marks.set_step(self._before)


def step(number: int) -> Step:
    """`with step(iteration): …` around everything that belongs to the step, also the optimizer."""
    return Step(number)
