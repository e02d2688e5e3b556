"""Every note has a code that programs can rely on, and every code and error class is explained in docs/messages.md."""

import re

from tests.support.message_reference import PAGE, code, error_classes, levels, notes, page
from trace_export.messages import ERRORS, NOTES


def test_every_note_has_a_literal_code_in_kebab_case_and_a_level() -> None:
    result = list(notes())
    assert result
    for where, note in result:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", code(note)), f"{where}: {code(note)}"
        assert levels(note) <= {"detail", "note", "warning"}, where


def test_every_code_is_explained_and_every_explanation_is_of_a_code() -> None:
    used = {code(note): where for where, note in notes()}
    assert {c: where for c, where in used.items() if c not in NOTES} == {}, "explain it in trace_export/messages.py"
    assert set(NOTES) - set(used) == set(), "no note has this code"
    assert list(NOTES) == sorted(NOTES)


def test_no_two_codes_mean_the_same() -> None:
    meanings = [explained.meaning for explained in NOTES.values()]
    assert len(set(meanings)) == len(meanings)


def test_every_error_class_is_explained() -> None:
    assert set(ERRORS) == {result.__name__ for result in error_classes()}
    assert all(result.__doc__ for result in error_classes())


def test_the_page_of_messages_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.support.message_reference"
