"""A run in a notebook: the chart in a frame of its own, offline, with the notebook's light or dark page."""

from html import unescape
from pathlib import Path

import polars as pl
import pytest
from playwright.sync_api import Browser, expect

import trace_export
from tests.support.wait import HANGS_S
from trace_export import plot
from trace_export.selection import Numbers


@pytest.fixture(scope="module")
def run() -> trace_export.Run:
    return trace_export.simulate("zb-h1", 4, 8)


def test_a_notebook_shows_the_chart(run: trace_export.Run, browser: Browser, tmp_path: Path) -> None:
    """As JupyterLab does: the HTML becomes part of a page, which has a style and a script of its own."""
    cell = tmp_path / "notebook.html"
    cell.write_text(
        "<!doctype html><style>p, canvas { display: none }</style><script>var chart = 'mine'</script>"
        f"<div id='cell'>{run._repr_html_()}</div>", encoding="utf-8"
    )  # fmt: skip
    context = browser.new_context(color_scheme="dark", offline=True)
    context.set_default_timeout(1000 * HANGS_S)
    page = context.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda message: failures.append(message.text) if message.type == "error" else None)
    for width in (380, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(cell.as_uri())
        frame = page.frame_locator("iframe")
        canvas = frame.locator("#chart")
        canvas.wait_for()
        box = canvas.bounding_box()
        assert box
        assert width - 80 < box["width"] < width
        whole = page.frames[1].evaluate("() => [document.documentElement.scrollHeight, innerHeight]")
        assert width < 1000 or whole[0] <= whole[1], "the frame needs no scroll bar"
        before = canvas.get_attribute("data-to")
        assert before
        canvas.press("w")
        expect(canvas).not_to_have_attribute("data-to", before)
        assert page.evaluate("() => chart") == "mine"
        assert page.frames[1].evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert failures == []
    context.close()


def test_the_frame_has_no_access_to_the_notebook(run: trace_export.Run) -> None:
    html = run._repr_html_()
    assert 'sandbox="allow-scripts"' in html
    assert unescape(html.split('srcdoc="')[1].split('" style')[0]) == run.plot().html
    assert "default-src 'none'" in run.plot().html


def test_a_plot_takes_what_pictures_take(run: trace_export.Run, tmp_path: Path) -> None:
    style = trace_export.FigureStyle(theme="grayscale", title="Mine")
    run.write(tmp_path / "a.svg", bubbles=True, figure=style)
    assert run.plot(style, bubbles=True).svg == (tmp_path / "a.svg").read_text("utf-8")


def test_a_large_run_is_shown_with_its_first_steps(run: trace_export.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = pl.concat(
        run.spans.with_columns(pl.col("start_ns", "end_ns") + n * 10**9, step=pl.lit(n, pl.Int32)) for n in range(5)
    )
    monkeypatch.setattr(plot, "MOST_BLOCKS", 2 * run.spans.height)
    assert plot.first_steps(spans) == Numbers.of([0, 1])
    monkeypatch.setattr(plot, "MOST_BLOCKS", 1)
    assert plot.first_steps(spans) == Numbers.of([0])


def test_nothing_to_draw_is_a_sentence(samples: Path) -> None:
    run = trace_export.load(samples / "paddle" / "single").select(steps=99)
    assert run._repr_html_().startswith("<p>")
    assert "no block matches step 99" in run._repr_html_()
