"""Two processes can tell whether they run the same code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from trace_export.workers.identity import Identity, identity

ONE = Identity("0.1.0", "123456789abc", "3.11", "2.1.0")


def digest_in(folder: Path) -> str:
    code = "from trace_export.workers.identity import identity; print(identity().code)"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_digest_follows_every_module_and_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "trace_export", tmp_path / "trace_export")
    assert digest_in(tmp_path) == identity().code
    (tmp_path / "trace_export" / "docs" / "formats.md").write_text("other words")
    assert digest_in(tmp_path) == identity().code
    with (tmp_path / "trace_export" / "writers" / "tables.py").open("a") as module:
        module.write("\n")
    changed = digest_in(tmp_path)
    assert changed != identity().code
    (tmp_path / "trace_export" / "writers" / "tables.py").rename(tmp_path / "trace_export" / "writers" / "other.py")
    assert digest_in(tmp_path) not in (changed, identity().code)


def test_each_difference_is_named() -> None:
    assert identity().differences(identity()) == ""
    assert ONE.differences(ONE._replace(version="of a checkout")) == ""
    assert ONE.differences(ONE._replace(python="3.12", polars="2.2.0")) == (
        "Python 3.12 instead of 3.11, Polars 2.2.0 instead of 2.1.0"
    )
    assert ONE.differences(ONE._replace(version="0.2.0", code="fff")) == (
        "trace_export 0.2.0 (code fff) instead of 0.1.0 (code 123456789abc)"
    )
