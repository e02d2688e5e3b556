"""The page to zoom: exact times, no network, no script from the data, tables as they are."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest
from playwright.sync_api import Browser, Page

import trace_export
from tests.support.browser import opened, pixels, screenshot
from tests.writers.pictures.test_picture import MS, run_of
from trace_export.analysis.bubbles import Bubbles
from trace_export.answer import Place, ReportTable, Sentence
from trace_export.chart.colours import FILLS
from trace_export.chart.layout import lay_out
from trace_export.choices import Theme
from trace_export.model import Profile
from trace_export.writers.pictures import picture
from trace_export.writers.pictures.page import Contents
from trace_export.writers.pictures.style import FigureStyle

EPOCH = 1_763_682_000_123_456_789


def data_of(path: Path) -> dict[str, Any]:
    """What the page's script draws from."""
    result = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert result
    data: dict[str, Any] = orjson.loads(result[1])
    return data


def values(column: dict[str, Any], count: int) -> list[Any]:
    return [column["values"][code] for code in column.get("codes", [0] * count)]


@pytest.fixture
def profile() -> Profile:
    """Two steps of a zero-bubble run at a real time of day."""
    run = run_of("zb-h1", 3, 4, steps=2)
    return replace(run, spans=run.spans.with_columns(pl.col("start_ns", "end_ns") + EPOCH))


@pytest.fixture
def path(profile: Profile, tmp_path: Path) -> Path:
    picture.write(lay_out(profile), tmp_path / "chart.html", "html", bubbles=Bubbles(profile).ranks)
    return tmp_path / "chart.html"


def test_every_block_is_there_to_the_nanosecond(profile: Profile, path: Path) -> None:
    data = data_of(path)
    count = len(data["wait"])
    edges = [accumulate(chain.from_iterable(zip(data["wait"][a:b], data["length"][a:b], strict=True)))
             for a, b in zip(data["offsets"], data["offsets"][1:], strict=False)]  # fmt: skip
    times = list(chain.from_iterable(edges))
    result = pl.DataFrame({
        "start_ns": times[::2], "end_ns": times[1::2],
        **{name: values(data["facts"][name], count) for name in ("rank", "step", "kind", "microbatch", "chunk")},
    })  # fmt: skip
    order = ["rank", "start_ns"]
    expected = profile.spans.with_columns(pl.col("start_ns", "end_ns") - EPOCH).select(result.columns).sort(order)
    assert expected.rows() == result.sort(order).rows()
    fills = values(data["fill"], count)
    assert fills == [FILLS[kind] for kind in values(data["facts"]["kind"], count)]
    windows = profile.spans.group_by("step").agg(pl.col("start_ns").min() - EPOCH, pl.col("end_ns").max() - EPOCH)
    assert [(s["start"], s["end"]) for s in data["steps"]] == windows.sort("step").select("start_ns", "end_ns").rows()
    # The idle time of ZB-H1 is (p - 1)(F + B - W) = 2 ms of a step of m (F + B + W) + that = 14 ms.
    assert [s["shares"] for s in data["steps"]] == [[2 / 14] * 3] * 2


def view(page: Page) -> tuple[float, float]:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return tuple(page.evaluate("() => ['from', 'to'].map((edge) => +document.getElementById('chart').dataset[edge])"))


def test_zoom_move_and_tooltip(path: Path, browser: Browser) -> None:
    with opened(browser, path) as page:
        assert view(page) == (0, 14 * MS)  # the first step
        box = page.locator("canvas").bounding_box()
        assert box
        middle = (box["x"] + box["width"] / 2, box["y"] + 22 + 12)
        page.mouse.move(*middle)
        tip = page.locator("#tip").inner_text()
        assert re.match(r"[FBW]\d · 1000 µs\nstarts at \d+ ms\n", tip)
        assert {"stage: 0", "rank: 0", "step: 0"} <= set(tip.split("\n"))
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        low, high = view(page)
        assert low > 0
        assert high - low < 14 * MS
        page.mouse.down()
        page.mouse.move(middle[0] - 100, middle[1], steps=4)
        page.mouse.up()
        moved = view(page)
        assert moved[0] > low
        assert moved[1] - moved[0] == pytest.approx(high - low)
        page.keyboard.press("w")
        assert view(page)[1] - view(page)[0] < moved[1] - moved[0]
        page.locator("canvas").dblclick()
        assert view(page) == (0, 33 * MS)  # two steps and the 5 ms between them
        page.locator("select").select_option("step 1")
        assert view(page) == (19 * MS, 33 * MS)
        for _ in range(30):
            page.keyboard.press("a")
        assert view(page)[0] == 0
        for _ in range(100):
            page.keyboard.press("+")
        assert view(page)[1] - view(page)[0] == pytest.approx(50)


def test_canvas_shows_the_colours_in_light_and_dark(path: Path, browser: Browser) -> None:
    for scheme, paper, idle in (("light", "#ffffff", "#eef1f4"), ("dark", "#0d1117", "#1c2128")):
        with opened(browser, path, color_scheme=scheme) as page:
            box = page.locator("canvas").bounding_box()
            assert box
            gutter = page.evaluate("() => { const pen = document.createElement('canvas').getContext('2d');"
                                   "pen.font = '12px ' + getComputedStyle(document.body).fontFamily;"
                                   "return pen.measureText('stage 0 · rank 0').width + 14; }")  # fmt: skip
            scale = (box["width"] - gutter - 64) / 14
            row = box["y"] + 22 + 4
            # Rank 0 of ZB-H1, p = 3, m = 4, in milliseconds: F0 F1 F2, idle until B0 has come back, then B0 W0 F3.
            points = [(box["x"] + gutter + (at + 0.5) * scale, row) for at in (0, 1, 2, 3, 4, 5, 6, 7)]
            shown = screenshot(page)
            with browser.new_page() as helper:
                colours = pixels(helper, shown, [(3, 3), *points])
        f, b, w = FILLS["F"], FILLS["B"], FILLS["W"]
        assert colours == [paper, f, f, f, idle, idle, b, w, f]


def test_without_scripts_the_still_picture_is_there(path: Path, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    image = page.locator("noscript img")
    box = image.bounding_box()
    assert box
    assert box["width"] > 600
    colour = pixels_without_script(browser, screenshot(page), box)
    context.close()
    assert FILLS["F"] in colour


def pixels_without_script(browser: Browser, shown: bytes, box: Any) -> set[str]:
    points = [(box["x"] + x, box["y"] + y) for x in range(100, 400, 2) for y in (86, 94)]
    with browser.new_page() as helper:
        return set(pixels(helper, shown, points))


NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\u2028\"'\x00"


class Tags(HTMLParser):
    """Counts the elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)


def test_hostile_text_never_becomes_markup(profile: Profile, tmp_path: Path, browser: Browser) -> None:
    spans = profile.spans.with_columns(marker=pl.lit(NASTY), kind=pl.lit(None, pl.String))
    ranks = profile.ranks.with_columns(host=pl.lit(NASTY))
    chart = replace(lay_out(replace(profile, spans=spans, ranks=ranks)), title=NASTY)
    tables = [ReportTable(NASTY, pl.DataFrame({NASTY: [NASTY]}), NASTY)]
    said = Sentence("nasty", {}, NASTY, NASTY)
    picture.write(chart, tmp_path / "nasty.html", "html", contents=Contents(NASTY, NASTY, [said], tables=tables))
    parser = Tags()
    parser.feed((tmp_path / "nasty.html").read_text())
    assert parser.seen.count("script") == 2
    assert parser.seen.count("img") == 1  # the still picture
    with opened(browser, tmp_path / "nasty.html") as page:
        assert page.locator("h1").inner_text().startswith("</script><script>alert(1)")
        assert page.locator("td").inner_text().startswith("</script><script>alert(1)")


def test_report_shows_its_tables(profile: Profile, tmp_path: Path, browser: Browser) -> None:
    frame = pl.DataFrame(
        {
            "stage": [0, 1],
            "step time": ["14 ms", None],
            "share": [1 / 7, 0.05],
            "far": [12345.6, None],
            "slow": [True, False],
        }
    )
    picture.write(
        lay_out(profile),
        tmp_path / "report.html",
        "html",
        contents=Contents(tables=[ReportTable("Bubbles", frame, "of each stage")]),
    )
    with opened(browser, tmp_path / "report.html") as page:
        assert page.locator("h2").inner_text() == "Bubbles"
        assert page.locator("th").all_inner_texts() == ["stage", "step time", "share", "far", "slow"]
        rows = [["0", "14 ms", "0.1429", "12346", "yes"], ["1", "–", "0.0500", "–", "no"]]
        assert page.locator("td").all_inner_texts() == rows[0] + rows[1]
        assert page.locator("td.number").count() == 6


NEXT_FRAME = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""What is to be drawn has been drawn."""


def test_a_long_table_is_folded_and_flagged_rows_lead_to_the_chart(
    profile: Profile, tmp_path: Path, browser: Browser
) -> None:
    table = ReportTable("Stages", pl.DataFrame({"stage": range(64)}), "", {37: Place(stage=1), 3: Place()})
    picture.write(lay_out(profile), tmp_path / "report.html", "html", contents=Contents(tables=[table]))
    with opened(browser, tmp_path / "report.html") as page:
        assert page.locator("td").count() == 64  # nothing is left out
        seen = [text.split()[0] for text in page.locator("td:visible").all_inner_texts()]
        assert seen == [*map(str, range(30)), "37"]
        assert page.locator("tr.flagged").all_inner_texts()[0] == "3"
        assert page.locator("a.place").count() == 1  # what is nowhere in the chart has no link
        page.set_viewport_size({"width": 800, "height": 300})
        page.evaluate(NEXT_FRAME)
        before = screenshot(page.locator("canvas"))
        page.locator("a.place").click()
        page.evaluate(NEXT_FRAME)
        assert screenshot(page.locator("canvas")) != before
        place = page.locator("canvas").bounding_box()
        assert place is not None
        assert -40 < place["y"] < 300  # the row is in view
        page.emulate_media(media="print")
        assert page.locator("select").is_hidden()


def test_blocks_of_one_width_all_have_their_numbers(tmp_path: Path, browser: Browser) -> None:
    """At any width of the window, whose edges of blocks are not whole numbers."""
    picture.write(lay_out(run_of("1f1b", 4, 8)), tmp_path / "chart.html", "html", contents=Contents())
    recorded = """() => {
        window.texts = [];
        const proto = CanvasRenderingContext2D.prototype, draw = proto.fillText;
        proto.fillText = function (text, ...place) { texts.push(text); return draw.call(this, text, ...place); };
    }"""
    with opened(browser, tmp_path / "chart.html") as page:
        page.evaluate(recorded)
        for width in (700, 997, 1333, 1600):
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(NEXT_FRAME)
            page.evaluate("window.texts = []")
            page.keyboard.press("0")
            page.evaluate(NEXT_FRAME)
            texts = page.evaluate("texts")
            assert [texts.count(str(number)) for number in range(8)] == [2 * 4] * 8, width


def test_a_printed_chart_is_on_one_sheet_and_not_distorted(tmp_path: Path, browser: Browser) -> None:
    """Of 64 stages, which are higher than a sheet is on the screen."""
    picture.write(lay_out(run_of("1f1b", 64, 4)), tmp_path / "chart.html", "html", contents=Contents())
    with opened(browser, tmp_path / "chart.html") as page:
        page.set_viewport_size({"width": 700, "height": 900})
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        page.evaluate(NEXT_FRAME)
        place = page.locator("canvas").bounding_box()
        assert place is not None
        drawn = page.evaluate("(({ width, height }) => width / height)(document.querySelector('canvas'))")
        assert place["height"] <= 900
        assert place["width"] / place["height"] == pytest.approx(drawn, rel=0.02)


@pytest.mark.parametrize("theme", ["auto", "dark"])
def test_paper_has_a_light_chart_of_its_own_width(tmp_path: Path, browser: Browser, theme: Theme) -> None:
    """From a wide, dark window: drawn as wide as that, its letters would be half as high on paper."""
    chart = lay_out(run_of("1f1b", 4, 4))
    picture.write(chart, tmp_path / "chart.html", "html", style=FigureStyle(theme=theme))
    shape = "(({ width, clientWidth }) => width / clientWidth)(document.querySelector('canvas'))"
    ground = """(() => {
        const canvas = document.querySelector('canvas'), axis = 36 / parseFloat(canvas.style.height);
        const at = [canvas.width * 0.85, canvas.height * (1 - axis)]; // the last stage has ended by then
        const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
        copy.drawImage(canvas, ...at, 1, 1, 0, 0, 1, 1);
        return [...copy.getImageData(0, 0, 1, 1).data];
    })()"""
    with opened(browser, tmp_path / "chart.html") as page:
        page.set_viewport_size({"width": 1600, "height": 900})
        page.emulate_media(color_scheme="dark")
        page.evaluate(NEXT_FRAME)
        assert page.evaluate(shape) == pytest.approx(1, abs=0.01)
        assert max(page.evaluate(ground)[:3]) < 128
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("document.querySelector('canvas').width") == 3 * 860
        assert min(page.evaluate(ground)[:3]) > 200
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        page.emulate_media(media="screen", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(shape) == pytest.approx(1, abs=0.01)
        assert max(page.evaluate(ground)[:3]) < 128


def test_nothing_is_asked_of_a_server(path: Path) -> None:
    text = path.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href|url)\s*[=(]\s*[\"']?(?!data:|#)\w+:", text)


def test_a_report_fits_a_phone_and_a_desk(samples: Path, tmp_path: Path, browser: Browser) -> None:
    """No line is cut and the page never moves sideways: what is wider, as a table, does so inside its own box."""
    page_path = trace_export.load(samples / "nsys" / "two_hosts").align().write_report(tmp_path)
    for width, scheme, paper in ((380, "dark", "#0d1117"), (1600, "light", "#ffffff")):
        with opened(browser, page_path, viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width
            box = page.locator("#chart").bounding_box()
            assert box
            assert 0.85 * width < box["width"] <= width
            outside = """() => [...document.querySelectorAll('h1, h2, p, li, select, button, .bar span')]
                .filter((one) => one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML)"""
            assert page.evaluate(outside) == []
            assert pixels(page, screenshot(page), [(4, 4)]) == [paper]
