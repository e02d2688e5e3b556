"""What `report` prints fits on one screen, and each figure that it shows is one of its JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from samples.generators.data_parallel import REDUCE, WRITERS, Job
from samples.generators.pipeline import MS
from tests.conftest import Cli
from tests.support import said
from tests.support.rows import slow
from tests.verdicts.cases import PLANTED, drawn, drawn_sound
from trace_export import api, documents
from trace_export.analysis.report import Report
from trace_export.answer import SHOWN as SHOWN_ROWS
from trace_export.cli import terminal
from trace_export.scale import words
from trace_export.scale.overview_document import overview_document
from trace_export.steps.idle import CAUSES

HEALTHY, SICK, COLUMNS = 40, 60, 80
SAMPLES = (
    "paddle/single", "nsys/two_hosts", "ascend", "mindspore", "rocpd/two_hosts", "recorder/two_hosts",
    "paddle/two_machines", "kineto/two_hosts", "unmarked",
)  # fmt: skip
NANOSECONDS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


Reported = Callable[[str], tuple[Path, api.Reported]]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory, samples: Path) -> Reported:
    """What `report` with a page says of a sample, a job with a planted cause, or one without, and the folder of its
    profiles. Asked for once, and nobody may change it."""

    @cache
    def report(name: str) -> tuple[Path, api.Reported]:
        folder, place = samples / name, tmp_path_factory.mktemp("one")
        if name == "sound":
            sound, form = drawn_sound(3)
            WRITERS[form](folder := place / "job", sound)
        elif name not in SAMPLES:
            case = drawn(1000 * list(PLANTED).index(name), name)
            WRITERS[case.form](folder := place / "job", case.job)
        with chdir(folder.parent):  # a long path is not broken
            return folder, api.report(folder.name, place / "page.html", html=True, jobs=1)

    return report


def numbers(value: object) -> Iterator[float]:
    """All numbers of a document."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def tables_of(markdown: str) -> dict[str, list[list[str]]]:
    """Title → heading and rows of each table of a document in Markdown."""
    result: dict[str, list[list[str]]] = {}
    title = ""
    for line in markdown.splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ")
        if line.startswith("| ") and not set(line) <= set("|-: "):
            result.setdefault(title, []).append([cell.strip(" *") for cell in line.strip("|").split(" | ")])
    return result


def tables_of_page(html: str) -> Iterator[list[list[str]]]:
    for table in re.findall(r"<table>(.*?)</table>", html, re.DOTALL):
        yield [re.findall(r"<t[hd][^>]*>([^<]*)", row) for row in re.findall(r"<tr.*?</tr>", table, re.DOTALL)]


def figures(text: str) -> Iterator[tuple[str, str]]:
    """The numbers with a unit that stand in prose."""
    yield from ((match[1], match[2]) for match in said.FIGURE.finditer(text))


def cells(table: list[list[str]]) -> Iterator[tuple[str, str]]:
    """The numbers of a table, with the unit of their column."""
    head, *rows = table
    for row in rows:
        for name, cell in zip(head, row, strict=True):
            unit = name.rpartition(" ")[2]
            if unit in (*NANOSECONDS, "%") and cell not in ("–", ""):
                yield cell.lstrip("-"), unit


def lacking(shown: Iterator[tuple[str, str]], document: dict[str, Any]) -> list[str]:
    """The figures that are no number of the document, rounded as they are."""
    values, absent = [abs(value) for value in numbers(document)], []
    for text, unit in shown:
        scale = 100.0 if unit == "%" else 1 / NANOSECONDS.get(unit, 1)
        half = 0.5 * 10.0 ** -len(text.partition(".")[2])
        if not any(abs(value * scale - float(text)) <= half * (1 + 1e-6) for value in values):
            absent.append(f"{text} {unit}")
    return absent


def shown(report: Report, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints."""
    terminal.lead(f"job: {report.heading}")
    terminal.answer(report.answer)
    terminal.tables(report.brief())
    return capsys.readouterr().out


SHOWN = [*SAMPLES[:3], "sound", "slow stage", "slow link", "late gather", "pause"]
"""Samples and causes of every kind; the others with --slow."""


@pytest.mark.parametrize("name", [*SHOWN, *slow(name for name in (*SAMPLES, *PLANTED) if name not in SHOWN)])
def test_the_answer_fits_on_a_screen_and_is_in_the_document(
    name: str, reported: Reported, capsys: pytest.CaptureFixture[str]
) -> None:
    _, done = reported(name)
    report, (page, *_) = done.report, done.files
    document, text = json.loads(report.json()), shown(report, capsys)
    lines = text.splitlines()
    healthy = report.verdict[0].code == "nothing-stands-out"
    assert len(lines) <= (HEALTHY if healthy else SICK)
    answer = [sentence.code for sentence in report.answer]
    if healthy and not document["verdict"][-1]["facts"]["doubts"]:
        assert answer == ["nothing-stands-out", "step"]
    else:
        assert answer[-1] == "certainty"
    assert max(map(len, lines)) <= COLUMNS
    first = report.verdict[0]
    assert first.next, "what to do next is not said"
    assert_adds_up(next(sentence.text for sentence in report.verdict if sentence.code == "step"))
    for sentence in document["verdict"]:
        assert said.wrong(sentence, document) == []
        assert said.wrong_counts(sentence, document) == []
    printed = " ".join(text.split())
    assert all(sentence.text in printed and sentence.next in printed for sentence in report.answer)
    for full in (False, True):
        written = report.markdown("job", full=full)
        for table in tables_of(written).values():
            assert lacking(cells(table), document) == []
        assert_only_known_prose(re.findall(r"^(?:\d+\. )?([^#|\n].*)$", plain(written), re.MULTILINE), document)
    html = unescape(page.read_text("utf-8"))
    assert re.findall(r"<li>([^<]*)", html.partition("</ol>")[0]) == [sentence.text for sentence in report.answer]
    assert set(re.findall(r"<li>([^<]*)", html)) == {sentence["text"] for sentence in document["verdict"]}
    assert_only_known_prose(re.findall(r"<(?:li|p)[^>]*>([^<]*)", html), document)
    for table in tables_of_page(html):
        assert lacking(cells(table), document) == []


def plain(markdown: str) -> str:
    """A document without the signs that keep its letters from being markup."""
    return re.sub(r"\\([\\`*_\[\]<>|#])", r"\1", markdown)


def assert_only_known_prose(paragraphs: list[str], document: dict[str, Any]) -> None:
    """That each one is a sentence of the document, or has no figure that is not the value of its key."""
    known = {sentence["text"]: sentence["next"] for sentence in document["verdict"]}
    for paragraph in paragraphs:
        text, _, then = paragraph.partition(" **Next:** ")
        if text in known:
            assert then in ("", known[text])
        else:
            assert said.wrong_notes(paragraph, document) == []


def assert_adds_up(step: str) -> None:
    """The parts of a step that a sentence names, as they are rounded there, are all of it."""
    usual = re.sub(r" \(from .*?\)", "", step.partition("; ranks are idle")[0])
    whole, colon, parts = usual.partition(": ")
    if not colon:
        return
    more, _, less = parts.partition(", less ")
    times = [
        [float(text) * NANOSECONDS[unit] for text, unit in figures(words) if unit in NANOSECONDS]
        for words in (whole, more, less)
    ]
    assert sum(times[1]) - sum(times[2]) == pytest.approx(times[0][-1], rel=0.006), step


@pytest.mark.parametrize("name", ["paddle/single", "slow rank", "late gather"])
def test_a_cell_is_the_value_of_its_name(name: str, reported: Reported) -> None:
    """The three tables of the first screen, row by row."""
    report = reported(name)[1].report
    document, tables = json.loads(report.json()), tables_of(report.markdown("job"))
    (_, *steps), (_, *stages) = tables["Steps"], tables["Stages"]
    at = {str(row["step"]): row for row in document["steps"]}
    for step, *texts, _ in steps:
        values = [at[step]["step_ns"], at[step]["pipeline_ns"], at[step]["bubble"]]
        assert_rounded(texts, [value and value / 1e6 for value in values[:2]] + [100 * values[2]])
    of = {str(row["stage"]): row for row in document["stage_means"]}
    for stage, ranks, busy, bubble, mostly, lasts in stages:
        row = of[stage]
        assert (ranks, mostly) == (str(row["ranks"]), row["mostly"] or "–")
        assert_rounded([busy, bubble, lasts], [row["busy_ns"] / 1e6, 100 * row["bubble"], row["mostly_ns"] / 1e6])
    for mean in document["stage_means"]:  # over the steps; the bubble is a share of busy and idle time
        rows = [row for row in document["stages"] if row["stage"] == mean["stage"]]
        busy_ns, idle_ns = (sum(row[name] for row in rows) for name in ("busy_ns", "global_ns"))
        assert mean["busy_ns"] == pytest.approx(busy_ns / len(rows))
        assert mean["bubble"] == pytest.approx(idle_ns / (busy_ns + idle_ns))
    said = [row for row in document["causes"] if row["gain"] is None or row["gain"] >= 0.01]
    for (_, _, share, gain, band), row in zip(tables.get("Causes", [[]])[1:], said, strict=True):
        assert_rounded([share, gain, band], [100 * row["gain"], row["gain_ns"] / 1e6, 100 * row["band"]])


OF_LEVELS = {"adds ms": "adds_ns", "step ms": "step_ns", "share %": "share"}
NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "Steps": (
        "steps",
        {"step ms": "step_ns", "pipeline ms": "pipeline_ns", "bubble %": "bubble", "own %": "bubble_own"},
    ),
    "Causes": (
        "causes",
        {"ratio": "ratio", "late start ms": "late_ns", "gain ms": "gain_ns", "gain %": "gain", "band %": "band",
         "even ms": "even_ns"},
    ),
    "What a step is made of": ("levels", OF_LEVELS),
    "Stages": (
        "stage_means",
        {"busy ms": "busy_ns", "bubble %": "bubble", "own %": "bubble_own", "that ms": "mostly_ns"}
        | {f"{words} ms": f"{cause}_ns" for cause, words in CAUSES.items()},
    ),
    "Idle time by cause": ("idle", {"idle ms": "idle_ns", "share %": "share"}),
    "Critical path": ("path_means", {"step ms": "step_ns", "share %": "share"}),
    "Transfers": (
        "links",
        {"sender late ms": "sender_late_ns", "receiver late ms": "receiver_late_ns", "wire ms": "wire_ns",
         "median ms": "median_wire_ns"},
    ),
    "What if": (
        "what_if",
        {"pipeline ms": "pipeline_ns", "saved %": "saved", "bubble %": "bubble", "in flight": "in_flight",
         "band %": "band"},
    ),
}  # fmt: skip
"""Of each table with figures the list of the document, and the name of each column there."""


@pytest.mark.parametrize("name", ["nsys/two_hosts", "slow link", "late gather", *slow(["unmarked", "late rank"])])
def test_each_figure_of_a_table_has_one_name(name: str, reported: Reported) -> None:
    """All tables of --full and of the page, whose other columns name the row."""
    report = reported(name)[1].report
    document = json.loads(report.json())
    document["idle"].sort(key=lambda row: -row["idle_ns"])
    document["what_if"][1:] = sorted(document["what_if"][1:], key=lambda row: -row["saved"])
    tables = tables_of(report.markdown("job", full=True))
    for title, (head, *shown) in tables.items():
        if title in ("Schedule", "Deviations from the schedule"):
            continue  # no figures but counts
        section, names = NAMES[title]
        named = [(at, names[column]) for at, column in enumerate(head) if column in names]
        assert [column for column in head if column.rpartition(" ")[2] in ("ms", "%") and column not in names] == []
        for cells, row in zip(shown[:SHOWN_ROWS], document[section], strict=False):
            scales = [1e-6 if name.endswith("_ns") else 100 if head[at].endswith("%") else 1 for at, name in named]
            values = [
                None if row[name] is None else row[name] * by for (_, name), by in zip(named, scales, strict=True)
            ]
            assert_rounded([cells[at] for at, _ in named], values)


def test_each_number_of_the_heat_map_is_in_the_document(tmp_path: Path, run_cli: Cli) -> None:
    """The slowdown of the rank at each place, of several the largest."""
    job = Job(stages=3, replicas=4, slow_ranks={7: 1.5})
    WRITERS["nsys"](tmp_path / "job", job)
    done = run_cli("report", "job", "--format", "svg", "--out", "map.svg", "--json", cwd=tmp_path)
    parts = json.loads(done.stdout)["slowdown"]["parts"]
    texts = ElementTree.fromstring((tmp_path / "map.svg").read_text("utf-8")).iter("{http://www.w3.org/2000/svg}text")
    shown = [text.text for text in texts if re.fullmatch(r"\d\.\d\d", text.text or "")]
    numbers = shown[-job.stages * job.replicas :]  # before them the end of the scale
    of_place: dict[tuple[int, int], list[float]] = {}
    for row in parts:
        if row["part"] == "rank":
            of_place.setdefault((row["stage"], row["replica"]), []).append(row["slowdown"])
    assert numbers == [f"{max(of_place[place]):.2f}" for place in sorted(of_place)]
    assert len(shown) == 1 + job.stages * job.replicas
    assert shown[0] == max(numbers)
    stage, replica = next((row["stage"], row["replica"]) for row in parts if row["rank"] == 7)
    assert max(numbers) == f"{max(of_place[stage, replica]):.2f}"
    assert json.loads(run_cli("report", "job", "--json", cwd=tmp_path).stdout)["slowdown"] is None


def assert_rounded(texts: list[str], values: list[float | None]) -> None:
    for text, value in zip(texts, values, strict=True):
        if value is None:
            assert text == "–"
        else:
            assert abs(float(text) - value) <= 0.5 * 10.0 ** -len(text.partition(".")[2]) * (1 + 1e-6)


def test_many_causes_in_many_stages_fit_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sixteen stages and twenty steps, with five causes at once."""
    job = Job(stages=12, replicas=2, steps=9, microbatches=14, hosts=6)
    causes = replace(
        job, slow={(0, 3): 1.4, (1, 3): 1.4}, slow_ranks={5: 1.9}, links={(8, 10): 9 * MS},
        late={(REDUCE, 1, 7): 40 * MS}, pause=60 * MS,
    )  # fmt: skip
    WRITERS["nsys"](tmp_path, causes)
    report = api.report(tmp_path, jobs=1).report
    lines = shown(report, capsys).splitlines()
    assert len(lines) <= SICK
    assert max(map(len, lines)) <= COLUMNS
    assert len(report.brief()[0].frame) <= 5
    assert len(report.brief()[1].frame) == 8
    assert any(line.endswith("more: --full") for line in lines)


@pytest.mark.parametrize(("slower", "limit"), [(1.0, HEALTHY), (1.2, SICK)])
def test_a_comparison_fits_on_a_screen(slower: float, limit: int, tmp_path: Path, run_cli: Cli) -> None:
    """A run beside a copy of itself, and beside one with a slow rank and other blocks; the rest is in --full."""
    job = Job(stages=8, replicas=2)
    WRITERS["paddle"](tmp_path / "a", job)
    slow = {(0, 3): slower, (1, 6): slower} if slower > 1 else {}
    WRITERS["paddle"](tmp_path / "b", replace(job, slow=slow, gap=int(job.gap * slower**20)))
    brief, full = (run_cli("compare", "a", "b", *more, cwd=tmp_path).stdout for more in ((), ("--full",)))
    assert len(brief.splitlines()) <= limit
    assert max(map(len, brief.splitlines())) <= COLUMNS
    assert "All tables: --full." in brief
    assert ("Causes" in brief) == (slower > 1)
    assert full.count("\n") > brief.count("\n")
    for row in ("jitter", "bubble (own window)", "Blocks"):
        assert row in full


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("nsys/two_hosts", "kineto/two_hosts"),
        ("paddle/single", "paddle/two_machines"),
        *slow([("ascend", "mindspore")]),
    ],
)
def test_each_figure_of_a_comparison_is_in_its_document(a: str, b: str, samples: Path) -> None:
    result = api.compare(samples / a, samples / b, jobs=1).comparison
    document = json.loads(result.json())
    for sentence in document["verdict"]:
        assert said.wrong(sentence, document) == []
    for full in (False, True):
        written = result.markdown(full=full)
        assert_only_known_prose(re.findall(r"^(?:\d+\. )?([^#|\n].*)$", plain(written), re.MULTILINE), document)
        tables = tables_of(written)
        assert tables
        for table in tables.values():
            assert lacking(cells(table), document) == []


@pytest.mark.parametrize("name", ["paddle/two_machines", "unmarked", *slow(["nsys/two_hosts"])])
def test_each_figure_of_an_overview_is_in_its_document(name: str, samples: Path, tmp_path: Path) -> None:
    result = api.overview(samples / name, tmp_path, jobs=1).overview
    document = json.loads(documents.encode(overview_document(result)))
    for sentence in document["verdict"]:
        assert said.wrong(sentence, document) == []
        assert said.wrong_counts(sentence, document) == []
    assert_only_known_prose([words.heading(result), *words.exception_lines(result, 20)], document)
    html = unescape((tmp_path / "pipeline_overview.html").read_text("utf-8"))
    assert_only_known_prose(re.findall(r"<(?:li|p|h2)[^>]*>([^<]*)", html), document)
    for table in tables_of_page(html):
        assert lacking(cells(table), document) == []


def test_the_counts_of_an_overview_and_what_it_lacks_are_in_its_document(tmp_path: Path) -> None:
    """Of 16 logs two cannot be read."""
    WRITERS["paddle"](tmp_path / "job", Job(stages=4, replicas=4))
    for rank in (5, 10):
        (tmp_path / "job" / f"workerlog.{rank}").write_text("no record", "utf-8")
    result = api.overview(tmp_path / "job", tmp_path / "page", jobs=1).overview
    document = json.loads(documents.encode(overview_document(result)))
    counts = ("ranks", document["ranks"]), ("hosts", document["hosts"]), ("replicas", len(document["replicas"]))
    more = ("stages", len(document["bands"])), ("steps", len(document["steps"]))
    assert re.findall(r"(\d+) (\w+?)s?\b", words.heading(result)) == [
        (str(count), name.removesuffix("s")) for name, count in (*counts, *more)
    ]
    ((unread, sources, share),) = re.findall(r"^(\d+) of (\d+) sources \((.*)%\)", words.missing(result))
    assert (int(unread), int(sources)) == (document["unread"], document["sources"]) == (2, 16)
    assert float(share) == 100 * document["unread"] / document["sources"]


def test_a_cell_of_an_overview_is_the_value_of_its_name(tmp_path: Path, run_cli: Cli) -> None:
    WRITERS["paddle"](tmp_path / "job", Job(stages=4, replicas=2, slow_ranks={5: 1.4}))
    document = json.loads(run_cli("overview", "job", "--json", "--out", "page", cwd=tmp_path).stdout)
    page = unescape((tmp_path / "page" / "pipeline_overview.html").read_text("utf-8"))
    of_head = {tuple(head[:2]): rows for head, *rows in tables_of_page(page)}
    for cells, band in zip(of_head["stage", "ranks"], document["bands"], strict=True):
        times = [band[f"{name}_ns"] / 1e6 for name in ("p5", "p50", "p95", "max")]
        assert_rounded(cells, [band["stage"], band["ranks"], *times, band["max_rank"], 100 * band["idle"]])
    for (_, _, whole, *cells), step in zip(of_head["step", "ranks"], document["steps"], strict=True):
        times = [step[f"{name}_ns"] and step[f"{name}_ns"] / 1e6 for name in ("step", "pipeline", "longest")]
        assert whole == ("yes" if step["whole"] else "no")
        assert_rounded(cells, [*times, 100 * step["bubble"]])
    assert document["causes"]
    for (_, _, *cells), cause in zip(of_head["cause", "ranks"], document["causes"], strict=True):
        assert_rounded(cells[:3], [cause["ratio"], cause["gain_ns"] / 1e6, 100 * cause["gain"]])
    for (_, *cells), level in zip(of_head["what", "ms"], document["levels"], strict=True):
        assert_rounded(cells, [level["adds_ns"] / 1e6, 100 * level["share"]])


def test_a_cell_of_a_comparison_is_the_value_of_its_name(tmp_path: Path) -> None:
    job = Job(stages=4, replicas=2)
    WRITERS["paddle"](tmp_path / "a", job)
    WRITERS["paddle"](tmp_path / "b", replace(job, slow_ranks={5: 1.4}))
    result = api.compare(tmp_path / "a", tmp_path / "b", jobs=1).comparison
    document, tables = json.loads(result.json()), tables_of(result.markdown(full=True))
    for (what, *texts, change), row in zip(tables["Steps"][1:], document["whole"], strict=True):
        share = what.startswith("bubble")
        scaled = [row[name] * (100 if share else 1e-6) for name in ("a", "b", "difference")]
        assert what == row["what"]
        assert_rounded([text.split()[0] for text in texts], scaled)
        told = (
            not share and row["change"] < 10
        )  # more is the change of a figure that is next to nothing in the first run
        assert_rounded([change], [100 * row["change"] if told else None])
    for (_, *texts), row in zip(tables["What the difference is made of"][1:-1], document["levels"], strict=True):
        assert_rounded(texts, [row[name] / 1e6 for name in ("a_ns", "b_ns", "difference")])
    assert document["causes"]
    for (_, _, *texts), row in zip(tables["Causes"][1:], document["causes"], strict=True):
        gains = [row[name] and row[name] / 1e6 for name in ("a_gain_ns", "b_gain_ns", "difference")]
        assert_rounded(texts, gains)
    for (stage, kind, *texts), row in zip(tables["Blocks"][1:], document["blocks"], strict=True):
        assert (int(stage), kind) == (row["stage"], row["kind"])
        values = [row["a_blocks"], row["b_blocks"], row["a_ns"] / 1e6, row["b_ns"] / 1e6, 100 * row["change"]]
        slowest = [row["a_slowest"], row["b_slowest"], row["a_slowest_ns"] / 1e6, row["b_slowest_ns"] / 1e6]
        assert_rounded(texts, values + slowest)


def test_report_and_export_say_the_same_of_clocks(tmp_path: Path, run_cli: Cli) -> None:
    """Two replicas on two hosts each, and nothing that both exchange: the hosts of one are aligned, and no more."""
    WRITERS["paddle"](tmp_path / "job", Job(stages=4, replicas=2, hosts=4, stages_first=True))
    drawn = run_cli("job", "--format", "csv", "--out", "out", cwd=tmp_path)
    told = " ".join(run_cli("report", "job", cwd=tmp_path).stdout.split())
    assert "2 groups of hosts that nothing connects, each on its own time axis" in drawn.stdout
    assert "nothing connects 2 groups of hosts, each on its own time axis; the clocks within a group agree to" in told
    assert "the clocks of 4 hosts agree" not in told
