"""The table of output formats."""

from __future__ import annotations

from trace_export.writers.formats import BY_NAME, OUTPUT_FORMATS


def test_every_format_has_a_row_a_writer_and_a_unique_extension() -> None:
    assert len(BY_NAME) == len(OUTPUT_FORMATS)
    assert len({known.extension for known in OUTPUT_FORMATS}) == len(OUTPUT_FORMATS)
    assert all(callable(known.load()) for known in OUTPUT_FORMATS)
