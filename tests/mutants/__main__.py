"""Breaks the package in a hundred ways, one at a time, and says which of them the tests notice.

`list.txt` has each mutant as three lines: the file, a line that is in it once, and what takes its place. They were
drawn at random from all comparisons, sums, conditions and extremes of the package; those that change nothing that
anybody could see were left out. The tests run in a copy of the checkout, nearest first: those of the mutated module,
those of its folder, then those that run whole commands. A mutant that they all pass is alive.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conftest import ROOT

LIST = Path(__file__).with_name("list.txt")
HANGS_S = 1200
"""A mutant that takes so long is noticed."""
WHOLE = ("tests/end_to_end/test_golden_runs.py", "tests/verdicts", "tests/pairs", "tests/end_to_end")

SHARED = ("ranges", "shared", "spans")
"""Folders of `sources` whose code the readers of several formats call: the tests of all formats are near."""


@dataclass(frozen=True)
class Mutant:
    file: str
    line: str
    instead: str

    def broken(self) -> str | None:
        """The text of the file with the mutant; None where the line is no longer there, or more than once."""
        lines = (ROOT / self.file).read_text("utf-8").split("\n") if (ROOT / self.file).exists() else []
        at = [number for number, line in enumerate(lines) if line.strip() == self.line]
        if len(at) != 1:
            return None
        lines[at[0]] = lines[at[0]].replace(self.line, self.instead)
        return "\n".join(lines)


def mutants() -> list[Mutant]:
    """All that the list has."""
    lines = LIST.read_text("utf-8").splitlines()
    return [Mutant(file, *(text[2:] for text in both)) for file, *both in zip(*[iter(lines)] * 3, strict=True)]


def stages(file: str, alone: bool = False) -> Iterator[list[str]]:
    """The tests to run for a mutant in `file`, each once: those that name its module, its folder (that of
    the library for modules at the top), whole commands. `alone`: without whole commands."""
    module = Path(file)
    folder = ROOT / "tests" / "/".join(module.parts[1:-1])
    while not folder.is_dir():
        folder = folder.parent
    package = ".".join(module.parent.parts)
    named = re.compile(rf"{re.escape(package)}(\.| import .*\b){module.stem}\b")
    tests = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "recorded" not in path.parts]
    near = [path for path in tests if path.stem == f"test_{module.stem}" or named.search(path.read_text("utf-8"))]
    done: set[Path] = set()
    beyond = list(dict.fromkeys(path for name in WHOLE for path in tests if path.is_relative_to(ROOT / name)))
    folder = folder if folder != ROOT / "tests" else folder / "api"
    shared = folder.name in SHARED and folder.parent.name == "sources"
    inside = [path for path in tests if path.parent == folder or (shared and path.is_relative_to(folder.parent))]
    for stage in (near, inside, [] if alone else beyond):
        left = [path for path in stage if path not in done]
        done.update(left)
        if left:
            yield [str(path.relative_to(ROOT)) for path in left]


def copied(folder: Path) -> None:
    """The files of the checkout that git knows, and new ones that it does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def noticed(mutant: Mutant, folder: Path, alone: bool) -> str | None:
    """What noticed the mutant in the copy of the checkout: a test, or that the tests hang. None if it lives."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for tests in stages(mutant.file, alone):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *tests]
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS_S, check=False
            )
        except subprocess.TimeoutExpired:
            return "a test hangs"
        if ended.returncode not in (0, 5):  # 5: all of them are slow ones
            said = re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)
            return said[0] if said else "it does not start"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="run each so many-th mutant alone")
    parser.add_argument("--start", type=int, default=0, help="begin with this one")
    parser.add_argument("--alone", action="store_true", help="without the tests of whole commands, which take minutes")
    given = parser.parse_args()
    verdicts: Counter[str] = Counter()
    with TemporaryDirectory() as name:
        folder = Path(name)
        copied(folder)
        for number, mutant in [*enumerate(mutants())][given.start :: given.every]:
            text, file = mutant.broken(), folder / mutant.file
            if text is None:
                verdict, why = "gone", "its line is not in the file any more"
            else:
                file.write_text(text, "utf-8")
                why = noticed(mutant, folder, given.alone)
                verdict, why = ("killed", why) if why else ("ALIVE", f"{mutant.line}  →  {mutant.instead}")
                shutil.copy2(ROOT / mutant.file, file)
            verdicts[verdict] += 1
            print(f"{number}: {verdict}: {mutant.file}: {why}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))


if __name__ == "__main__":
    main()
