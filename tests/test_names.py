"""The order of names."""

from trace_export.ordering import natural


def test_numbers_in_names_are_compared_as_numbers() -> None:
    names = ["machine10", "stream 7", "machine2", "10", "9", "stream 13", "9" * 6000, "machine"]
    assert sorted(names, key=natural) == [
        "9", "10", "9" * 6000, "machine", "machine2", "machine10", "stream 7", "stream 13",
    ]  # fmt: skip
