"""Output of Nsight Systems that is not read says what to make of it."""

from pathlib import Path

import pytest

from tests.conftest import Cli


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report1.qdstrm", "is the stream of a capture: make a report of it with QdstrmImporter"),
        ("report1.h5", "is no export that is read: nsys export --type sqlite"),
        ("report1_cuda_gpu_trace.csv", "is no export that is read: nsys export --type sqlite"),
    ],
)
def test_other_output_names_the_command(name: str, words: str, run_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x")
    ended = run_cli("inspect", tmp_path)
    assert ended.returncode == 1
    assert f"{name} {words}" in ended.stderr
