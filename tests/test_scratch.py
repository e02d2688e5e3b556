"""A scratch folder is gone when the block that uses it ends."""

from pathlib import Path

import pytest

from tests.support.command import command
from trace_export.scratch import scratch_folder


def test_the_folder_is_private_and_gone_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), scratch_folder() as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "file").write_text("x")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_without_a_place_for_it_there_is_a_sentence(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose file system is read-only."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(tmp_path / "absent")])
    export = (samples / "nsys" / "two_hosts", "--detail", "kernels", "--jobs", 1, "--out", tmp_path / "out")
    done = command(*export)
    assert done.returncode == 1
    assert done.stderr.startswith("trace-export: no folder for temporary files can be written to; set TMPDIR to a")
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    done = command(*export)
    assert done.returncode == 1
    assert f"{tmp_path / 'absent'} takes no temporary files (No such file or directory); set TMPDIR" in done.stderr
