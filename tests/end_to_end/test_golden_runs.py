"""The commands do with the samples what they did, and what scripts rely on is still there."""

import re

import pytest

from tests.conftest import ROOT
from tests.support import golden_runs, surface
from trace_export.cli.commands import command


@pytest.mark.parametrize("name", golden_runs.RUNS)
def test_a_golden_run_is_as_before(name: str) -> None:
    changed = golden_runs.differences(name, golden_runs.text(name))
    again = f"if that is meant, write the text anew: python -m tests.support.golden_runs {name}"
    assert not changed, "\n".join([*changed, again])


def test_every_golden_text_has_its_run() -> None:
    assert {path.stem for path in golden_runs.FOLDER.glob("*")} == set(golden_runs.RUNS)


@pytest.mark.parametrize("name", golden_runs.COMMANDS)
def test_every_option_is_in_a_golden_run(name: str) -> None:
    given = golden_runs.options().get(name, set())
    spelled = {
        spelling
        for parameter in command(name).params
        if parameter.param_type_name == "option" and parameter.name != "help" and not parameter.hidden
        for spelling in parameter.opts + parameter.secondary_opts
    }
    assert spelled - given == spelled & golden_runs.ELSEWHERE


def test_nothing_that_scripts_rely_on_went_without_a_word() -> None:
    frozen, today = surface.frozen(), set(surface.today())
    missing = [thing for thing, instead in frozen.items() if not instead and thing not in today]
    assert not missing, f"say in {surface.FILE.name} what took their place, after '{surface.GONE}'"
    assert [thing for thing, instead in frozen.items() if instead and thing in today] == []


def test_the_page_of_changes_names_all_that_went() -> None:
    """Each command, option, note and first key of a document, with what took its place."""
    page = (ROOT / "trace_export" / "docs" / "changes-0.2.md").read_text("utf-8")
    rows = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    named = {word for code in re.findall("`([^`]+)`", rows) for word in re.findall(r"[-\w]+", code)}
    gone = [thing.split() for thing, instead in surface.frozen().items() if instead]
    words = {row[1].rstrip(",") if row[0] in ("command", "note") else re.split(r"\W*[.[]", row[2])[0] for row in gone}
    assert len(words) > 20
    assert words - named == set()
