"""What is shipped, and what it depends on."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.wait import HANGS_S

FETCHING = {"urllib", "requests", "httpx", "aiohttp", "ftplib", "urllib3", "pip", "ensurepip"}
"""Modules with which a program could load something from elsewhere while it runs."""


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]  # type: ignore[no-any-return]


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=HANGS_S)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {n for n in names if not n.split("/")[0].endswith(".dist-info")}
    here = {p.relative_to(ROOT).as_posix() for p in (ROOT / "trace_export").rglob("*.py")}
    assert {n for n in shipped if n.endswith(".py")} == here
    assert "trace_export/py.typed" in shipped
    assert {n.split("/")[0] for n in shipped} == {"trace_export"}
    assert {Path(n).suffix for n in shipped} <= {
        ".py",
        ".typed",
        ".md",
        ".svg",
        ".css",
        ".pyi",
        ".js",
        ".html",
        ".sql",
        ".textproto",
        ".json",
    }


def test_every_dependency_has_a_lower_bound_and_a_locked_version() -> None:
    facts = project()
    extras = facts["optional-dependencies"]
    wanted = [*facts["dependencies"], *(r for name in extras for r in extras[name])]  # type: ignore[attr-defined, misc, index]
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))
    versions = {name.lower().replace("_", "-"): version for name, version in locked.items()}
    for requirement in wanted:
        if requirement.startswith("trace-export["):
            continue
        match = re.fullmatch(r"([\w-]+)(>=|==)([\d.]+)", requirement)
        assert match, f"{requirement}: no plain lower bound"
        assert match[1] in versions, f"{match[1]} is not locked"
        assert as_numbers(versions[match[1]]) >= as_numbers(match[3])


def as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition(".post")[0]))


def test_nothing_is_fetched_while_it_runs() -> None:
    """The offline UI is served from the extra `ui`, and a profile is never sent anywhere."""
    named = re.compile(rf"\b({'|'.join(FETCHING)})\b")
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "trace_export").rglob("*.py")}
    for path, source in sources.items():
        if not named.search(source):  # most files: they need not be parsed
            continue
        for node in ast.walk(ast.parse(source)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            fetching = {n for n in names if n.split(".")[0] in FETCHING and n != "urllib.parse"}
            assert not fetching, f"{path}: {fetching}"
