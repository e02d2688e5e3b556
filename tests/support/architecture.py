"""Which part of the program imports which, read from the source, and the homes of facts in docs/architecture.md."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = ROOT / "trace_export"
PAGE = PACKAGE / "docs" / "architecture.md"
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(module: str) -> str:
    """The folder or file directly below the package: `trace_export.sources.nsys.reader` is of `sources`."""
    return module.split(".")[1] if "." in module else "__init__"


def module_name(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the syntax of a file."""
    return tuple(ast.walk(ast.parse(_text(path))))


def homes() -> list[tuple[str, str, frozenset[str]]]:
    """The page's table of facts: the file of each, the function that makes it, and the files that may ask this one."""
    table = PAGE.read_text("utf-8").partition("<!-- homes -->")[2].partition("<!-- end of homes -->")[0]
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in line.split("|")] for line in table.splitlines()[3:]]
    return [(row[3][0], row[3][1], frozenset(row[4])) for row in rows if len(row) > 4]


def callers(home: str, function: str) -> frozenset[str]:
    """The files, besides `home`, that name a function of that file."""
    module, result = module_name(PACKAGE / home), set()
    for path in FILES:
        if function not in _text(path):
            continue
        nodes = nodes_of(path)
        names: dict[str, set[str]] = {"function": set(), "module": set()}
        for node in nodes:
            for alias in node.names if isinstance(node, ast.ImportFrom) else []:
                if (node.module, alias.name) == (module, function):
                    names["function"].add(alias.asname or alias.name)
                if f"{node.module}.{alias.name}" == module:
                    names["module"].add(alias.asname or alias.name)
        for node in nodes:
            by_name = isinstance(node, ast.Name) and node.id in names["function"]
            of_module = isinstance(node, ast.Attribute) and node.attr == function
            if by_name or (of_module and isinstance(node.value, ast.Name) and node.value.id in names["module"]):
                result.add(path.relative_to(PACKAGE).as_posix())
    return frozenset(result - {home})


@cache
def imported(path: Path) -> frozenset[str]:
    """The modules of this package that a file imports, wherever in the file; raises ValueError for `from . import`."""
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"{path}: relative import")
            names.update(_module(f"{node.module}.{alias.name}") for alias in node.names)
    return frozenset(name for name in names if name.split(".")[0] == "trace_export")


def _module(name: str) -> str:
    """The module of `from module import name`, which may itself be a module."""
    path = ROOT / Path(*name.split("."))
    return name if path.is_dir() or path.with_suffix(".py").exists() else name.rpartition(".")[0]
