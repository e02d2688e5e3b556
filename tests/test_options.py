"""Options are declared once: everything that users see of one follows from its declaration."""

import inspect
from pathlib import Path

import pytest

import trace_export
from trace_export.cli.commands import ROWS
from trace_export.options import LIBRARY, Loading, Writing, checked, flags, options_of, spelled


@pytest.mark.parametrize("name", ROWS)
def test_every_option_of_a_command_is_explained_and_has_a_spelling_of_its_own(name: str) -> None:
    options = {key: option for key, option in options_of(ROWS[name].kind).items() if option.panel != LIBRARY}
    assert all(option.help.endswith(".") for option in options.values())
    spellings = [flag for key, option in options.items() for flag in flags(key, option)]
    assert len(set(spellings)) == len(spellings)
    typed = [option.name or key for key, option in options.items() if flags(key, option)]
    assert all(spelled(parameter.replace("*", "forward"), ROWS[name].kind).startswith("--") for parameter in typed)


def test_the_defaults_of_options_pass_their_own_checks() -> None:
    for kind in (Loading, Writing, *(row.kind for row in ROWS.values())):
        once = checked({}, kind)
        assert checked(once, kind) == once


def test_a_function_shows_its_keywords_and_refuses_others(samples: Path) -> None:
    parameters = inspect.signature(trace_export.load).parameters
    assert parameters["detail"].default == "spans"
    assert set(parameters) == {"log_dir", *options_of(Loading)}
    with pytest.raises(TypeError, match="'step'"):
        trace_export.load(samples / "paddle" / "single", step=3)  # type: ignore[call-arg]
