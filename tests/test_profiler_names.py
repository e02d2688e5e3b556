"""No profiler and no framework is named in code outside `sources`: what depends on one is a fact that its reader
declares (a column, a field of `Declared`) or a field of its row in `sources/formats.py`."""

import ast
import re
from collections.abc import Iterator

from tests.support.architecture import FILES, PACKAGE
from trace_export.schedules.catalogue import TITLES

NAMES = {
    "ascend", "cann", "cupti", "deepspeed", "hccl", "kineto", "megatron", "mindspeed", "mindspore", "msprof", "mstx",
    "nccl", "npu", "nsight", "nsys", "nvtx", "paddle", "pytorch", "torch", "torchrun",
}  # fmt: skip
EXEMPT = {
    "sources": "the readers",
    "inference": "how frameworks name the threads and kernels by which passes are told",
    "instrument": "it marks passes inside each framework, and imports nothing of the rest",
    "schedules": "an order that one framework alone runs is called after it, as users know it",
    "messages.py": "documentation: what each code of a note means for users of each profiler",
    "options.py": "the help of the command that starts instrumented frameworks",
    "analysis/train_log.py": "the lines that each framework logs",
    "analysis/layers.py": "the options by which each framework takes a split of the layers",
}
CHECKED = [
    path
    for path in FILES
    if not {path.relative_to(PACKAGE).as_posix(), path.relative_to(PACKAGE).parts[0]} & EXEMPT.keys()
]


def texts(tree: ast.AST) -> Iterator[str]:
    """All identifiers and strings but docstrings and the names of schedules."""
    documentation = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in documentation and node.value not in TITLES:
                yield node.value
            continue
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(text := getattr(node, field, None), str):
                yield text


def named(code: str) -> list[str]:
    """The identifiers and strings of `code` in which a name of `NAMES` is a word."""
    return [text for text in texts(ast.parse(code)) if NAMES & set(re.findall(r"[a-z]+", text.lower()))]


def test_code_outside_the_readers_names_no_profiler() -> None:
    result = {str(path.relative_to(PACKAGE)): named(path.read_text(encoding="utf-8")) for path in CHECKED}
    assert {path: names for path, names in result.items() if names} == {}


def test_what_counts_as_naming_one() -> None:
    assert named("if kind == 'nsys': pass") == ["nsys"]
    assert named("import trace_export.sources.ascend.find") == ["trace_export.sources.ascend.find"]
    assert named("def read_paddle(): pass") == ["read_paddle"]
    assert named("'''Paddle counts ranks otherwise.'''\nplan = 'zbh1-paddle'  # torch\nscan = 1") == []
