"""The page of an overview in a real browser: from a file, without a request, wide and narrow, bright and dark."""

import re
from math import floor, log10
from pathlib import Path

import orjson
import polars as pl
import pytest
from playwright.sync_api import Browser

import trace_export
from tests.support.browser import opened
from trace_export.documents import encode
from trace_export.scale.files import OF_PEERS, OF_RANKS
from trace_export.scale.overview_document import overview_document
from trace_export.writers.overview import heat_map
from trace_export.writers.overview.heat_map import Quantity

BUSY = Quantity("busy", "busy time", "×")


@pytest.fixture
def page(written: tuple[Path, trace_export.Overviewed]) -> Path:
    return written[0] / "pipeline_overview.html"


@pytest.mark.parametrize(("width", "look"), [(1600, "light"), (380, "dark")])
def test_the_page_opens_from_a_file_and_fits(browser: Browser, page: Path, width: int, look: str) -> None:
    with opened(browser, page, viewport={"width": width, "height": 900}, color_scheme=look) as tab:
        tab.locator("#state", has_text="96 of 96 ranks").wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        paper = {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[look]
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        assert tab.locator("h2").all_inner_texts()[:4] == [
            "Causes", "Exceptions", "Ranks and steps", "Stages",
        ]  # fmt: skip


def test_a_link_shows_the_rank_and_zooming_out_shows_all(browser: Browser, page: Path) -> None:
    with opened(browser, page) as tab:
        row = tab.locator("tr", has_text="slow rank").first
        rank = row.locator("td").nth(3).inner_text()
        row.locator("a.place").click()
        tab.locator("#state", has_text="25 of 96 ranks").wait_for()
        box = tab.locator("#heat").bounding_box()
        assert box is not None
        tab.mouse.move(box["x"] + 300, box["y"] + 20 + (box["height"] - 20) / 2)
        assert tab.locator("#tip").inner_text().startswith(f"rank {rank} ·")
        assert "busy time, by the median of the stage: 1.3" in tab.locator("#tip").inner_text()
        tab.locator("#all").click()
        tab.locator("#state", has_text="96 of 96 ranks").wait_for()


def test_each_cell_of_the_map_is_that_of_the_document(
    browser: Browser, written: tuple[Path, trace_export.Overviewed]
) -> None:
    """What the page tells of a cell, of every rank and step: all quantities, in the digits that it shows."""
    document = orjson.loads(encode(overview_document(written[1].overview)))
    with opened(browser, written[0] / "pipeline_overview.html") as tab:
        tab.locator("#state", has_text="96 of 96 ranks").wait_for()
        tips = tab.locator("#heat").evaluate("""heat => {
            const box = heat.getBoundingClientRect(), told = [];
            const columns = JSON.parse(document.getElementById("data").textContent).columns.length;
            for (let row = 0; row < 96; row++) for (let c = 0; c < columns; c++) {
                const clientX = box.left + 92 + ((c + 0.5) * (box.width - 92)) / columns;
                const clientY = box.top + 20 + ((row + 0.5) * (box.height - 20)) / 96;
                heat.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
                told.push(document.getElementById("tip").textContent);
            }
            return told;
        }""")
    of_names = {q.name: (q.column, q.scale) for q in (*OF_PEERS, *OF_RANKS)}
    cells = document["cells"]
    assert len(tips) == len(cells["rank"])
    for at, tip in enumerate(tips):
        (place, step, *figures) = tip.split("\n")
        assert place == f"rank {cells['rank'][at]} · stage {cells['stage'][at]} · replica {cells['replica'][at]}"
        assert step.endswith(f" · step {cells['step'][at]}")
        assert len(figures) == len(of_names)
        for figure in figures:
            name, text = figure.split(": ")
            column, scale = of_names[name]
            value = cells[column][at] * scale
            digit = 10.0 ** -max(3 - floor(log10(max(abs(other) for other in cells[column]) * scale)), 0)
            assert float(text.split()[0]) == pytest.approx(value, abs=0.5001 * digit, rel=0)


def test_each_pixel_shows_the_slowest_of_its_ranks(browser: Browser, page: Path) -> None:
    """Seen from far, 96 ranks on 20 pixels, the seven slow ranks are still there."""
    with opened(browser, page) as tab:
        tab.locator("#heat").evaluate("heat => { heat.style.height = '40px'; }")
        tab.locator("#state", has_text="to a pixel").wait_for()
        bright = tab.locator("#heat").evaluate("""heat => {
            const pixels = heat.getContext("2d").getImageData(200, 20, 1, heat.height - 20).data;
            return Array.from({ length: heat.height - 20 }, (_, y) => pixels[4 * y] > 200).filter(Boolean).length;
        }""")
        assert bright >= 6


def test_more_ranks_and_steps_than_fit_share_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat_map, "MOST_BYTES", 100)
    monkeypatch.setattr(heat_map, "MOST_COLUMNS", 2)
    busy = [1.0, 1.1, 1.2, 1.0] * 10
    busy[22] = 3.0
    cells = pl.DataFrame({
        "rank": [rank for rank in range(10) for _ in range(4)], "run": [0] * 40, "step": [0, 1, 2, 3] * 10,
        "replica": [0] * 40, "stage": [0] * 40, "busy": busy,
    })  # fmt: skip
    ranks = pl.DataFrame({"rank": range(10), "host": ["a"] * 10})
    result = heat_map.heat_map(cells, ranks, [BUSY])
    assert (result.fold, result.columns_fold) == (2, 2)
    assert result.data["columns"] == ["0 … 1", "2 … 3"]
    assert result.data["rows"] == 5
    assert result.of_rank(5) == (2, 3)
    values = result.data["quantities"][0]
    assert (values["first"], values["last"], values["decimals"]) == (1100, 3000, 3)


def test_noise_gets_no_bright_colours() -> None:
    """Busy times within a percent of each other are all in the middle of a scale from 0.91 to 1.1."""
    cells = pl.DataFrame({
        "rank": [0, 1], "run": [0, 0], "step": [0, 0], "replica": [0, 0], "stage": [0, 0], "busy": [0.995, 1.005],
    })  # fmt: skip
    drawn = heat_map.heat_map(cells, pl.DataFrame({"rank": [0, 1], "host": ["a", "a"]}), (*OF_PEERS, *OF_RANKS)[:1])
    values = drawn.data["quantities"][0]
    assert (values["first"], values["last"], values["decimals"]) == (round(1000 / 1.1), 1100, 3)


def test_the_page_stays_below_five_megabytes() -> None:
    """Of the largest map that is not folded, and of a larger one."""
    for count in (150_000, 400_000):
        numbers = pl.int_range(count, eager=True).alias("rank").to_frame()
        cells = numbers.select(
            "rank", run=pl.lit(0), step=pl.lit(0), replica="rank", stage=pl.lit(0), busy=pl.col("rank") % 7 / 7
        )
        ranks = numbers.with_columns(host=pl.lit("host"))
        result = heat_map.heat_map(cells, ranks, [BUSY])
        assert len(orjson.dumps(result.data)) < 4_600_000


def test_a_single_replica_has_a_map_that_shows_something(samples: Path, tmp_path: Path, browser: Browser) -> None:
    """Each rank is the median of its stage, so its idle share is shown, in rows as high as letters need."""
    trace_export.overview(samples / "nsys" / "two_hosts", tmp_path, jobs=1)
    with opened(browser, tmp_path / "pipeline_overview.html") as tab:
        tab.locator("#state", has_text="4 of 4 ranks").wait_for()
        assert tab.locator("#quantity option").first.inner_text() == "idle share (bubble)"
        colours = """heat => {
            const { data } = heat.getContext('2d').getImageData(100, 20, heat.width - 100, heat.height - 20);
            return new Set(new Uint32Array(data.buffer)).size;
        }"""
        assert tab.locator("#heat").evaluate(colours) > 4
        box = tab.locator("#heat").bounding_box()
        assert box is not None
        assert box["height"] <= 150
        assert "trace-export report" in tab.locator("ol").inner_text()
        assert "Replicas that behave alike" not in tab.locator("h2").all_inner_texts()


def test_a_printed_page_has_the_map(page: Path, browser: Browser) -> None:
    """As a picture of its own size: the only other one is the scale, 256 pixels wide."""
    with opened(browser, page) as tab:
        tab.locator("#state", has_text="96 of 96 ranks").wait_for()
        widths = [int(width) for width in re.findall(rb"/Width (\d+)", tab.pdf())]
        tab.emulate_media(media="print")
        assert tab.locator("#named").inner_text() == "busy time, by the median of the stage"
    assert max(widths) > 2 * 860


def test_paper_has_a_light_map_of_its_own_width(page: Path, browser: Browser) -> None:
    """From a wide, dark window, whose names of rows are white."""
    dark = """() => {
        const heat = document.querySelector('#heat'), copy = document.createElement('canvas');
        const pen = copy.getContext('2d', { willReadFrequently: true });
        pen.drawImage(heat, 0, 0);
        const { data } = pen.getImageData(0, 0, copy.width, copy.height);
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200 && data[i] < 80) return true;
        return false;
    }"""  # of the names of the first rows
    with opened(browser, page, viewport={"width": 1600, "height": 900}, color_scheme="dark") as tab:
        tab.locator("#state", has_text="96 of 96 ranks").wait_for()
        assert tab.locator("#heat").evaluate("heat => heat.width === heat.clientWidth")
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.locator("#heat").evaluate("heat => heat.width") == 3 * 860
        assert tab.evaluate(dark)
        tab.evaluate("dispatchEvent(new Event('afterprint'))")
        assert tab.locator("#heat").evaluate("heat => heat.width === heat.clientWidth")
