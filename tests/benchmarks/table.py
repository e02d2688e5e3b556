"""The rows of the table of benchmarks, and how a benchmark prints its own.

A benchmark has a function `rows(options)` that yields a Row for each figure, with the aim beside the code that measures
it. `python -m tests.benchmarks.bench_NAME` prints them; `tests/benchmarks/run` collects those of all benchmarks.
"""

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from tests.benchmarks.measure import Amount


@dataclass(frozen=True)
class Row:
    """One figure beside its aim.

    `theirs`: what `reference` takes for the same work, in the same run. `aim`: of the ratio of the two, or of `ours`
    where there is no reference; at most, or `at_least`. `missing`: why it could not be measured.
    """

    work: str
    ours: Amount | None = None
    reference: str = ""
    theirs: Amount | None = None
    aim: float | None = None
    at_least: bool = False
    missing: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours.value / self.theirs.value if self.ours and self.theirs else None

    @property
    def met(self) -> bool | None:
        """None where there is no aim, or no figure."""
        value = self.ratio if self.theirs else self.ours.value if self.ours else None
        if value is None or self.aim is None:
            return None
        return value >= self.aim if self.at_least else value <= self.aim

    def cells(self) -> tuple[str, ...]:
        """The columns of the table: work, ours, reference, ratio, aim, met."""
        if self.ours is None:
            return self.work, f"not measured: {self.missing}", self.reference, "", self._aim(), ""
        ratio = ""
        if self.theirs and self.ratio is not None:
            ratio = f"{short(self.ratio)} ×"
            if self.ours.cpu is not None and self.theirs.cpu:
                ratio += f" ({short(self.ours.cpu / self.theirs.cpu)} × CPU)"
        reference = f"{self.reference} {shown(self.theirs)}" if self.theirs else self.reference
        met = "" if self.met is None else "yes" if self.met else "**no**"
        return self.work, shown(self.ours), reference, ratio, self._aim(), met

    def _aim(self) -> str:
        if self.aim is None:
            return ""
        unit = "×" if self.theirs or not self.ours else self.ours.unit
        return f"{'≥' if self.at_least else '≤'} {short(self.aim)} {unit}"


def shown(amount: Amount) -> str:
    cpu = "" if amount.cpu is None else f" ({short(amount.cpu)} CPU)"
    return f"{short(amount.value)} {amount.unit}{cpu}"


def short(value: float) -> str:
    """Three digits, never as a power of ten."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{value:.4f}" if "e" in text else text


def markdown(rows: Iterable[Row]) -> str:
    head = ("work", "ours", "reference", "ratio", "aim", "met")
    lines = [head, ("---",) * len(head), *(row.cells() for row in rows)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def to_json(row: Row) -> str:
    return json.dumps(asdict(row))


def from_json(text: str) -> Row:
    fields = json.loads(text)
    for name in ("ours", "theirs"):
        fields[name] = Amount(**fields[name]) if fields[name] else None
    return Row(**fields)


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options of all benchmarks; a benchmark adds its own."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="very small inputs: only to see that it works")
    made.add_argument("--json", action="store_true", help="one row a line, as JSON")
    return made


def main(rows: Callable[[argparse.Namespace], Iterable[Row]], options: argparse.Namespace) -> None:
    """Prints the rows of a benchmark as they are measured."""
    for row in rows(options):
        line = to_json(row) if options.json else " | ".join(filter(None, row.cells()))
        print(line, flush=True)
