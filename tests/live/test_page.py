"""The page of a watched job, in a real browser: it changes by itself, survives a restart, and does not grow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from samples.generators.paddle import Job
from tests.live.test_look import looks
from tests.support.browser import browser as browser
from tests.support.growing_logs import GrowingLogs
from tests.support.traces import decode
from trace_export.live.board import HISTORY, Board
from trace_export.live.look import Look
from trace_export.viewer.live import LiveServer


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Look]:
    logs = GrowingLogs(tmp_path_factory.mktemp("run <b>"), Job(stages=3, microbatches=4, steps=range(4)))
    logs.write(0, 1)
    return looks(logs.folder, [lambda s=s: logs.write(s) for s in range(2, 4)])  # type: ignore[misc]


@pytest.fixture(scope="module")
def board(seen: list[Look]) -> Board:
    """It keeps the pictures of the last steps seen. Tests may give it other looks at these."""
    board = Board("run")
    board.put(seen[-1])
    return board


@contextmanager
def opened(browser: Browser, address: str, **options: object) -> Iterator[tuple[Page, list[str]]]:
    """The page, and what it complained of."""
    context = browser.new_context(**options)  # type: ignore[arg-type]
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(address) else None)
    page.goto(address)
    yield page, complaints
    context.close()


def test_the_page_shows_each_new_step(browser: Browser, seen: list[Look]) -> None:
    board = Board("run <b>")
    with LiveServer(board.resources(), 0) as server, opened(browser, server.address) as (page, complaints):
        expect(page).to_have_title("run <b> – trace-export watch")
        expect(page.locator("#state")).to_contain_text("waiting for the first step")
        for look in seen:
            server.publish(board.put(look))
            expect(page.locator("#state")).to_contain_text(f"step {look.steps[-1].step},")
            assert look.run is not None
            shown = look.run.spans["step"].unique().sort().to_list()
            expect(page.locator("#chart")).to_contain_text(f"step {shown[-1]}")
            expect(page.locator("#figures")).to_contain_text(f"{look.steps[-1].bubble:.1%}".replace("%", " %"))
        expect(page.locator("#chart svg")).to_have_count(3)
        assert page.locator("#times polyline").count() == 1
        assert complaints == []


@pytest.mark.parametrize(
    ("lag_s", "said"),
    [(2.25, "read 2.2 s after it was written"), (3857.1, "in files that were 64 min old when they were read")],
)
def test_the_page_says_how_old_a_step_is(lag_s: float, said: str, seen: list[Look]) -> None:
    look = seen[-1]
    board = Board("run")
    state = board.put(replace(look, steps=[replace(step, lag_s=lag_s) for step in look.steps]))
    assert json.loads(state)["summary"] == f"step {look.steps[-1].step}, {said}"


def test_a_problem_is_shown_and_goes_away(browser: Browser, seen: list[Look], board: Board) -> None:
    with LiveServer(board.resources(), 0) as server, opened(browser, server.address) as (page, complaints):
        server.publish(board.put(replace(seen[-1], problem="rank <i>3</i> is missing")))
        expect(page.locator("#problem")).to_have_text("rank <i>3</i> is missing")
        server.publish(board.put(seen[-1]))
        expect(page.locator("#problem")).to_be_hidden()
        assert complaints == []


def test_the_page_finds_a_server_that_was_started_again(browser: Browser, seen: list[Look]) -> None:
    first, second = Board("run"), Board("run")
    with LiveServer(first.resources(), 0) as server:
        port = int(server.server_address[1])
        server.publish(first.put(seen[0]))
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.address)
        expect(page.locator("#state")).to_contain_text(f"step {seen[0].steps[-1].step},")
    expect(page.locator("#state")).to_contain_text("the connection to trace-export is lost")
    with LiveServer(second.resources(), 0, port) as server:
        server.publish(second.put(seen[-1]))
        expect(page.locator("#state")).to_contain_text(f"step {seen[-1].steps[-1].step},")
        expect(page.locator("#chart")).to_contain_text(f"step {seen[-1].steps[-1].step}")
        context.close()


def test_narrow_and_wide_screens(browser: Browser, seen: list[Look], board: Board) -> None:
    with LiveServer(board.resources(), 0) as server, opened(browser, server.address) as (page, complaints):
        server.publish(board.put(seen[-1]))
        for width, scheme, paper in ((420, "dark", "rgb(13, 17, 23)"), (1600, "light", "rgb(255, 255, 255)")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.reload()
            page.wait_for_selector("#chart svg")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert complaints == []


def test_thousands_of_steps_are_no_more_than_the_last_ones(browser: Browser, seen: list[Look]) -> None:
    board = Board("run")
    step, shown = seen[-1].steps[-1], seen[-1]._shown
    assert shown is not None
    with LiveServer(board.resources(), 0) as server, opened(browser, server.address) as (page, _):
        elements = []
        for first in (0, 1_000):
            figures = tuple(replace(step, step=first + i) for i in range(1_000))
            drawn_anew = replace(shown, steps=tuple(map(replace, shown.steps)))
            state = board.put(replace(seen[-1], steps=figures, _shown=drawn_anew))
            assert len(state) < 400 * HISTORY + 1_000
            server.publish(state)
            expect(page.locator("#state")).to_contain_text(f"step {first + 999},")
            expect(page.locator("#chart > div").last).to_have_attribute("data-name", json.loads(state)["charts"][-1])
            expect(page.locator("#chart > div")).to_have_count(len(shown.steps))
            expect(page.locator("#legend > span").first).to_be_visible()
            elements.append(page.evaluate("document.querySelectorAll('body *').length"))
        assert min(elements) == max(elements)


def test_the_trace_of_the_steps_shown(seen: list[Look], board: Board) -> None:
    names = [slice["name"] for slice in decode(board.trace())]
    run = seen[-1].run
    assert run is not None
    assert sum(name == "F0" for name in names) >= run.spans.filter(kind="F", microbatch=0).height


NAMED = {
    "step": ["step"], "since previous": ["since_previous_ns"], "pipeline time": ["pipeline_ns"], "bubble": ["bubble"],
    "busy for longest": ["slowest_stage", "slowest_rank"], "worst link": ["worst_link", "worst_link_ratio"],
    "slowdown S": ["slowdown"], "clock error": ["clock_error_ns"],
    "what costs most": ["cause_ratio", "cause_gain_ns", "cause_gain", "cause_band"],
}  # fmt: skip
"""The names, in a line of JSON, of the figures of each box of the page, in their order."""
UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "%": 0.01}


def test_each_figure_of_the_page_is_in_the_line_of_json(browser: Browser, tmp_path: Path) -> None:
    """Of a job with a slow stage, with a worst link, the metric S and an error of the clock as well."""
    job = Job(stages=3, microbatches=4, steps=range(6), slow={(1, 0): 1.5})
    logs = GrowingLogs(tmp_path / "run", job)
    logs.write(0, 1)
    look = looks(logs.folder, [lambda s=s: logs.write(s) for s in range(2, 6)])[-1]  # type: ignore[misc]
    more = {"worst_link": (1, 2), "worst_link_ratio": 2.5, "slowdown": 1.25, "clock_error_ns": 2_500.0}
    last = replace(look.steps[-1], **more)
    line = json.loads(last.json())
    board = Board("run")
    with LiveServer(board.resources(), 0) as server, opened(browser, server.address) as (page, _):
        server.publish(board.put(replace(look, steps=(last,))))
        expect(page.locator("#figures dt")).to_have_count(len(NAMED))
        boxes = dict(zip(*(page.locator(f"#figures {each}").all_inner_texts() for each in ("dt", "dd")), strict=True))
    assert boxes["what costs most"] == line["cause"]
    boxes["what costs most"] = boxes["what costs most"].partition(": ")[2]
    for name, keys in NAMED.items():
        values = [each for key in keys for each in (line[key] if isinstance(line[key], list) else [line[key]])]
        shown = re.findall(r"(\d+(?:\.\d+)?) ?(ns|µs|ms|s\b|%)?", boxes[name])
        assert len(shown) == len(values), boxes[name]
        for (text, unit), value in zip(shown, values, strict=True):
            half = 0.5 * 10.0 ** -len(text.partition(".")[2])
            assert abs(value / UNITS.get(unit, 1) - float(text)) <= half * (1 + 1e-6), (name, text, value)


TIMES = {
    0: "0 ns", 40: "40 ns", 1_500: "1.5 µs", 100_000_000: "100 ms", 120_400_000: "120 ms", 1_000_000_000: "1 s",
    250_000_000_000: "250 s", 1_234_000_000_000: "1230 s",
}  # fmt: skip


def test_times_have_three_digits(browser: Browser, seen: list[Look], board: Board) -> None:
    with LiveServer(board.resources(), 0) as server, opened(browser, server.address) as (page, _):
        for ns, text in TIMES.items():
            figures = replace(seen[-1].steps[-1], since_previous_ns=ns, slowdown=None, clock_error_ns=None)
            server.publish(board.put(replace(seen[-1], steps=(figures,))))
            expect(page.locator("#figures")).to_contain_text(f"since previous{text}")
            expect(page.locator("#figures")).not_to_contain_text("–")
            expect(page.locator("#figures")).not_to_contain_text("slowdown")
