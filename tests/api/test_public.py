"""What the package offers: the names, their types and their documentation."""

import ast
import importlib.metadata
import inspect
import subprocess
import sys
import typing
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import trace_export
from tests.conftest import ROOT

NAMES = [name for name in trace_export.__all__ if not name.startswith("__")]
CLASSES = [kind for name in NAMES if inspect.isclass(kind := getattr(trace_export, name))]
FUNCTIONS = [made for name in NAMES if inspect.isfunction(made := getattr(trace_export, name))]
LATE = {name: getattr(trace_export, name) for name in NAMES}
"""For annotations whose names are imported for type checkers only."""


def test_the_public_names_are_sorted_and_documented() -> None:
    assert trace_export.__all__ == sorted(trace_export.__all__)
    assert dir(trace_export) == trace_export.__all__
    assert [item for item in (*CLASSES, *FUNCTIONS) if not item.__doc__] == []
    with pytest.raises(AttributeError):
        trace_export.nothing  # noqa: B018


def test_a_type_checker_knows_every_public_name() -> None:
    """The stub re-exports each from the module that defines it: no name is Any."""
    tree = ast.parse(Path(trace_export.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [(node.module, alias) for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(alias.name for _, alias in imports) == NAMES
    assert all(alias.asname == alias.name for _, alias in imports)
    assert [alias.name for module, alias in imports if alias.name not in vars(import_module(str(module)))] == []


def test_the_version_is_that_of_the_package() -> None:
    assert trace_export.__version__ == importlib.metadata.version("trace-export")


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, trace_export; sys.exit(any(m in sys.modules for m in ('polars', 'numpy', 'typer')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def methods(kind: type) -> list[Any]:
    """The public methods that a class of ours defines."""
    public = [item for name, item in vars(kind).items() if not name.startswith("_")]
    read = [item.fget if isinstance(item, property) else item for item in public]
    return [item for item in read if inspect.isfunction(item)]


def mentioned(hint: Any) -> set[Any]:
    """The classes in an annotation."""
    if get_origin(hint) is None and not isinstance(hint, UnionType):
        return {hint} if inspect.isclass(hint) else set()
    return set().union(*(mentioned(argument) for argument in get_args(hint)))


def own_hints(item: Any) -> list[Any]:
    return list(get_type_hints(item, localns=LATE).values())


def test_every_type_in_a_public_signature_is_public() -> None:
    hints = [hint for function in FUNCTIONS for hint in own_hints(function)]
    for kind in CLASSES:
        hints += [hint for method in methods(kind) for hint in own_hints(method)]
        if is_dataclass(kind):
            types = get_type_hints(kind, localns=LATE)
            hints += [types[field.name] for field in fields(kind) if not field.name.startswith("_")]
    ours = {kind for hint in hints for kind in mentioned(hint) if kind.__module__.startswith("trace_export")}
    assert {kind.__qualname__ for kind in ours} - set(NAMES) == set()


def test_public_functions_take_no_undeclared_keywords() -> None:
    for item in [*FUNCTIONS, *(method for kind in CLASSES for method in methods(kind))]:
        if inspect.isfunction(item):
            kinds = {parameter.kind for parameter in inspect.signature(item).parameters.values()}
            assert inspect.Parameter.VAR_KEYWORD not in kinds, item
            assert typing.Any not in own_hints(item), item
