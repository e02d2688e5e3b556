"""Every note has a code that programs can rely on: a literal in the code, in kebab-case."""

from __future__ import annotations

import ast
import re

from tests.conftest import ROOT

PACKAGE = ROOT / "trace_export"


def notes() -> list[tuple[str, ast.expr]]:
    """(file and line, code) of each `Note(...)` in the package."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Note":
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.args[0]))
    return found


def test_every_note_has_a_literal_code_in_kebab_case() -> None:
    found = notes()
    assert found
    for where, code in found:
        assert isinstance(code, ast.Constant) and isinstance(code.value, str), f"{where}: the code is no literal"
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", code.value), f"{where}: {code.value}"
