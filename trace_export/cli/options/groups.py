"""Groups of options as parameters of a command, and the option that stands for a parameter of the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

from trace_export.cli.options.clocks import Clocks
from trace_export.cli.options.input import Passes, Sizes, Source
from trace_export.cli.options.output import Drawing
from trace_export.cli.options.pictures import Figures
from trace_export.cli.options.printing import Printing
from trace_export.cli.options.selection import Selection
from trace_export.cli.options.workers import Workers

GROUPS = (Source, Passes, Sizes, Selection, Drawing, Figures, Clocks, Workers, Printing)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as Typer takes it: each parameter of the type of a group is replaced by the group's fields."""
    hints = get_type_hints(command, include_extras=True)
    flat: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if is_dataclass(kind := hints[name]):
            types = get_type_hints(kind, include_extras=True)
            for field in fields(kind):
                flat.append(_keyword(field.name, field.default, types[field.name]))
        else:
            flat.append(_keyword(name, parameter.default, hints[name]))

    def run(**values: Any) -> None:
        for name, kind in hints.items():
            if name != "return" and is_dataclass(kind):
                values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})  # type: ignore[operator]
        command(**values)

    run.__doc__ = command.__doc__
    run.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _keyword(name: str, default: object, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def spelled(parameter: str) -> str:
    """The option that stands for a parameter of the API."""
    if parameter.startswith("figure."):
        name = parameter.removeprefix("figure.")
        return {"width_mm": "--width", "steps": "--figure-steps"}.get(name, f"--{name.replace('_', '-')}")
    if parameter.startswith("costs."):
        return {"costs.transfer": "--comm", "costs.overlap": "--overlap"}.get(parameter, "--times")
    for group in GROUPS:
        hint = get_type_hints(group, include_extras=True).get(parameter)
        info = hint.__metadata__[0] if hint is not None else None
        names = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)] if info else []
        if names:
            return names[0]
    return f"--{parameter.replace('_', '-')}"
