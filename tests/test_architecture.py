"""Who may import whom, read from the imports of every file; docs/architecture.md explains the rule."""

import re

from tests.support.architecture import FILES, PACKAGE, PAGE, callers, homes, imported, module_name, part_of

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "files", "messages", "choices", "progress", "instrument"}),
    frozenset({
        "model", "units", "selection", "ordering", "tolerances", "scratch", "documents",
        "segments", "stream_order", "memory", "answer",
    }),
    frozenset({"schedules", "inference"}),
    frozenset({"sources", "pipeline", "clocks", "steps", "analysis", "chart", "writers", "workers", "viewer"}),
    frozenset({"arguments"}),
    frozenset({"options"}),
    frozenset({"read", "draw"}),
    frozenset({"plot", "write"}),
    frozenset({"run"}),
    frozenset({"simulation"}),
    frozenset({"inspection", "step_tasks"}),
    frozenset({"scale", "live"}),
    frozenset({"api"}),
    frozenset({"deprecated", "agents"}),
    frozenset({"__init__"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)  # fmt: skip
"""From the bottom to the top: a part imports itself and the layers below it."""
NEIGHBOURS = {
    ("analysis", "pipeline"), ("analysis", "steps"), ("steps", "pipeline"),
    ("writers", "chart"), ("viewer", "chart"), ("selection", "units"), ("selection", "model"),
    ("segments", "model"), ("stream_order", "tolerances"),
}  # fmt: skip
"""Imports within a layer."""
ALONE = {"errors", "files", "memory", "messages", "choices", "progress", "instrument"}
"""They import nothing of the rest: `instrument` runs inside a training script, without our dependencies."""
SHARED = {"ranges", "shared", "spans"}
"""The folders in `sources` that are not of one profiler."""

BEHIND_THE_API = {
    "pipeline", "clocks", "chart", "writers", "schedules", "selection",
    "read", "draw", "write", "step_tasks",
}  # fmt: skip
"""What commands reach through `api` and never import."""

LEVEL = {part: level for level, layer in enumerate(LAYERS) for part in layer}


def may_import(part: str, other: str) -> bool:
    if part in ALONE:
        return part == other
    return part == other or LEVEL[other] < LEVEL[part] or (part, other) in NEIGHBOURS


def profiler(module: str) -> str:
    """The profiler whose folder a module lies in; "" where it lies in none."""
    names = module.split(".")
    folder = names[2] if names[1:2] == ["sources"] and len(names) > 2 else ""
    return folder if (PACKAGE / "sources" / folder).is_dir() and folder not in SHARED else ""


def test_every_part_is_in_a_layer_and_exists() -> None:
    assert set(LEVEL) == {part_of(module_name(path)) for path in FILES}


def test_a_file_imports_only_what_its_part_may_know() -> None:
    wrong = {
        str(path.relative_to(PACKAGE)): forbidden
        for path in FILES
        if (forbidden := sorted(m for m in imported(path) if not may_import(part_of(module_name(path)), part_of(m))))
    }
    assert wrong == {}


def test_only_the_folder_of_a_profiler_imports_it() -> None:
    """Others reach it by its row in `sources.formats`, which names its modules as text."""
    for path in FILES:
        others = {result for module in imported(path) if (result := profiler(module))}
        assert others <= {profiler(module_name(path))}, path


def test_each_fact_is_made_in_its_home_and_asked_for_by_those_that_the_page_names() -> None:
    """A second caller is a second place where the fact is worked out."""
    assert len(homes()) > 15
    for home, function, asked_by in homes():
        assert f"\ndef {function}(" in (PACKAGE / home).read_text("utf-8"), home
        assert callers(home, function) == asked_by, function


def test_what_a_fact_is_made_of_stands_in_its_home_alone() -> None:
    """A message's time on the wire, and what an interpretation consists of: written once."""
    once = {
        r'max_horizontal\("send_start_ns", "recv_start_ns"\)': "model.py",
        r"\bInterpretation\(": "pipeline/interpret.py",
    }
    for text, home in once.items():
        result = {path.relative_to(PACKAGE).as_posix() for path in FILES if re.search(text, path.read_text("utf-8"))}
        assert result == {home}, text


def test_the_page_names_files_that_exist() -> None:
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", PAGE.read_text("utf-8")):
        assert (PACKAGE / name).is_file() or (PACKAGE.parent / name).is_file(), name


def test_the_command_line_works_through_the_api_alone() -> None:
    for path in FILES:
        if part_of(module_name(path)) == "cli":
            modules = {module.removeprefix("trace_export.") for module in imported(path)}
            assert not BEHIND_THE_API & (modules | {module.split(".")[0] for module in modules}), path
