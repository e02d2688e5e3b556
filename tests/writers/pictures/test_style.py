"""How pictures are made to fit a paper: width, colours, numbers, legend, a part of the time, PDF."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pypdfium2
import pytest
from playwright.sync_api import Browser

import trace_export
from tests.support.browser import opened
from tests.writers.pictures.test_picture import SVG, blocks_of, luminance, run_of, texts_of
from trace_export.analysis.bubbles import Bubbles
from trace_export.chart.colours import COLORBLIND, FILLS, GRAYS, TEXT, shade
from trace_export.chart.layout import lay_out
from trace_export.errors import NothingToExportError, UsageError
from trace_export.selection import Window
from trace_export.writers.pictures import picture
from trace_export.writers.pictures.style import FigureStyle

MS = 1_000_000
SIX_POINTS = 8.0
"""In CSS pixels."""


def styled(
    tmp_path: Path, style: FigureStyle, schedule: str = "zb-h1", stages: int = 4, microbatches: int = 8, steps: int = 1
) -> ElementTree.Element:
    profile = run_of(schedule, stages, microbatches, steps)
    picture.write(lay_out(profile), tmp_path / "a.svg", "svg", None, Bubbles(profile).ranks, style)
    return ElementTree.parse(tmp_path / "a.svg").getroot()


def test_a_width_on_paper(tmp_path: Path, browser: Browser) -> None:
    width = 88
    root = styled(tmp_path, FigureStyle(width_mm=width))
    assert root.get("width") == f"{width}mm"
    assert float(root.get("viewBox", "").split()[2]) == pytest.approx(width * 96 / 25.4, abs=1e-3)
    sizes = [float(size) for size in re.findall(r"font-size:([\d.]+)px", (tmp_path / "a.svg").read_text("utf-8"))]
    assert len(sizes) == 4
    assert min(sizes) >= SIX_POINTS
    with opened(browser, tmp_path / "a.svg") as page:
        right = page.evaluate("() => Math.max(...[...document.querySelectorAll('text')].map((t) => "
                              "t.getBBox().x + t.getBBox().width))")  # fmt: skip
    assert right <= width * 96 / 25.4


def test_a_width_without_room_for_blocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"figure.width_mm: a picture of 30 mm has no room .*; give at least \d\dmm"):
        styled(tmp_path, FigureStyle(width_mm=30))


def test_a_pdf_has_its_size_and_shows_what_the_svg_shows(tmp_path: Path) -> None:
    style = FigureStyle(width_mm=180, theme="grayscale")
    root = styled(tmp_path, style)
    profile = run_of("zb-h1", 4, 8)
    picture.write(lay_out(profile), tmp_path / "a.pdf", "pdf", None, Bubbles(profile).ranks, style)
    document = pypdfium2.PdfDocument(tmp_path / "a.pdf")
    page = document[0]
    assert len(document) == 1
    assert page.get_width() == pytest.approx(180 / 25.4 * 72, abs=0.01)
    shown = page.render(scale=4 / 3 * 2).to_numpy()[:, :, ::-1]  # two pixels for each of the SVG's, BGR
    blocks = blocks_of(root)
    assert blocks.height == 96
    for fill, x, y, w, h in blocks.iter_rows():
        corner = shown[round(2 * (y + h)) - 4, round(2 * (x + w)) - 4]  # beside the number
        assert "#" + "".join(f"{part:02x}" for part in corner) == fill
    text = page.get_textpage().get_text_range()
    assert set(texts_of(root)) >= {"stage 0", "F0", "W7"}
    assert {"stage 0", "F0", "W7"} <= set(text.split("\r\n")) | set(re.findall(r"stage \d|[FBW]\d", text))
    document.close()


def test_themes_fix_the_colours(tmp_path: Path) -> None:
    for theme, paper in (("light", "#ffffff"), ("dark", "#0d1117"), ("print", "#ffffff")):
        styled(tmp_path, FigureStyle(theme=theme))  # type: ignore[arg-type]
        text = (tmp_path / "a.svg").read_text("utf-8")
        assert "@media" not in text
        assert f".paper{{fill:{paper}}}" in text
    styled(tmp_path, FigureStyle())
    assert "@media (prefers-color-scheme:dark)" in (tmp_path / "a.svg").read_text("utf-8")


def test_a_page_keeps_its_theme(tmp_path: Path, browser: Browser) -> None:
    for theme, paper in (("light", "rgb(255, 255, 255)"), ("auto", "rgb(13, 17, 23)")):
        chart = lay_out(run_of("gpipe", 2, 2))
        picture.write(chart, tmp_path / "a.html", "html", style=FigureStyle(theme=theme))  # type: ignore[arg-type]
        with opened(browser, tmp_path / "a.html", color_scheme="dark") as page:
            assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == paper


def test_kinds_differ_without_colour() -> None:
    """A print in black and white keeps what differs in luminance: contrast ratios as in WCAG 2."""
    for fills in (FILLS, GRAYS, COLORBLIND):
        light = [luminance(fills[kind]) + 0.05 for kind in "FB"]
        assert max(light) / min(light) >= 1.3
    assert all(len({fill[1:3], fill[3:5], fill[5:7]}) == 1 for fill in GRAYS.values())
    for theme in ("grayscale", "colorblind"):
        for kind in FILLS:
            assert (luminance(shade(kind, 0, 1, theme)) + 0.05) / (luminance(TEXT) + 0.05) >= 7  # type: ignore[arg-type]


def test_letters_and_the_number_of_the_first_microbatch(tmp_path: Path) -> None:
    profile = run_of("zb-h1", 4, 8)
    letter = profile.spans.select(pl.concat_str("kind", pl.col("microbatch") + 1)).to_series()
    for style in (FigureStyle(theme="print", first_microbatch=1), FigureStyle(letters=True, first_microbatch=1)):
        root = styled(tmp_path, style)
        numbers = [text.text for group in root.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")]
        assert sorted(numbers) == sorted(letter)  # type: ignore[type-var]
        assert "Micro-batches are numbered from 1 here, and from 0 in the data." in texts_of(root)
    pairs = run_of("dualpipev", 2, 6).spans.filter(pl.col("kind") == "FB").select("microbatch", "microbatch_b")
    texts = texts_of(styled(tmp_path, FigureStyle(letters=True), "dualpipev", 2, 6))
    assert {f"F{f}+B{b}" for f, b in pairs.iter_rows()} <= set(texts)


def test_title_and_legend(tmp_path: Path) -> None:
    def swatches(root: ElementTree.Element) -> list[float]:
        return [float(rect.get("y", 0)) for rect in root.iter(f"{SVG}rect") if rect.get("fill")]

    above, below, none = (
        styled(tmp_path, FigureStyle(title=title, legend=legend))  # type: ignore[arg-type]
        for title, legend in ((None, "above"), ("Figure 1", "below"), ("", "none"))
    )
    assert max(swatches(above)) < blocks_of(above)["y"].min()  # type: ignore[operator]
    assert min(swatches(below)) > blocks_of(below)["y"].max()  # type: ignore[operator]
    assert swatches(none) == []
    assert [root.findtext(f"{SVG}title") for root in (above, below, none)] == [
        "PP chart · ZB-H1 · PP=4",
        "Figure 1",
        "",
    ]
    assert [text.text for text in none.iter(f"{SVG}text") if text.get("class") == "title"] == []


@pytest.mark.parametrize("font", ["'Liberation Sans'", "'DejaVu Sans'", "monospace"])
def test_a_legend_is_evenly_spaced_in_any_font(font: str, tmp_path: Path, browser: Browser) -> None:
    """No words reach into the next square, and the gaps behind them are alike."""
    trace_export.simulate("zb-h1", 4, 8).write(tmp_path / "a.svg", bubbles=True)
    text = (tmp_path / "a.svg").read_text("utf-8")
    (tmp_path / "a.svg").write_text(text.replace("font-family:system-ui", f"font-family:{font}"), encoding="utf-8")
    with opened(browser, tmp_path / "a.svg") as page:
        gaps = page.evaluate("""() => [...document.querySelectorAll('text[textLength]')].flatMap((words) => {
            const next = words.nextElementSibling, box = words.getBBox();
            const here = next?.tagName === 'rect' && Math.abs(next.getBBox().y - box.y) < 5;
            return here ? [next.getBBox().x - box.x - box.width] : [];
        })""")
    assert len(gaps) >= 4
    assert min(gaps) > 10
    assert max(gaps) - min(gaps) < 1


def test_a_part_of_the_time_is_cut_at_both_ends(tmp_path: Path) -> None:
    root = styled(tmp_path, FigureStyle(range=Window(1 * MS + MS // 2, 4 * MS)), "gpipe", 1, 4)
    widths = blocks_of(root)["w"] + 1  # a gap of a pixel separates neighbours
    scale = widths.sum() / 2.5
    assert [round(width / scale, 1) for width in widths] == [0.5, 1.0, 1.0]  # F1 from 1.5 ms, F2, F3 up to 4 ms
    assert any(text.startswith("1.5 ms to 4 ms after the first block") for text in texts_of(root))
    with pytest.raises(NothingToExportError, match="no block to draw; widen `figure"):
        styled(tmp_path, FigureStyle(range=Window(1_000 * MS, 2_000 * MS)), "gpipe", 1, 4)


def test_schedules_are_drawn_on_one_scale_of_time(tmp_path: Path) -> None:
    names, stages, microbatches = ["1f1b", "zb-h1", "interleaved"], 4, 8
    runs, files = trace_export.draw_schedules(names, stages, microbatches, path=tmp_path / "all.svg")
    root = ElementTree.parse(files[0]).getroot()
    # A stage has a forward, an input gradient and a weight gradient of 10 ms each, whatever the schedule.
    work = 3 * 10 * MS * microbatches
    idle = {"1f1b": 3 * 30 * MS, "zb-h1": 3 * 10 * MS, "interleaved": 3 * 30 * MS / 2}  # (p - 1) (F + B), F, / chunks
    headings = [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "step"]
    for run, name, heading in zip(runs, names, headings, strict=True):
        busy = run.spans.group_by("rank").agg((pl.col("end_ns") - pl.col("start_ns")).sum())["end_ns"]
        assert busy.to_list() == [work] * stages
        assert (
            f"bubble {idle[name] / (idle[name] + work):.1%} · pipeline time {(idle[name] + work) / MS:.3g} ms"
            in heading
        )
    blocks = blocks_of(root).with_columns(row=pl.col("y").rank("dense") - 1)
    ends = (
        blocks.group_by(panel=pl.col("row") // stages).agg(end=(pl.col("x") + pl.col("w")).max()).sort("panel")["end"]
    )
    left = blocks["x"].min()
    spans = [(end + 1 - left) / (idle[name] + work) for end, name in zip(ends, names, strict=True)]  # type: ignore[operator]
    assert spans == pytest.approx([spans[0]] * 3, rel=0.002)


def test_several_schedules_are_a_picture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="several schedules are drawn in one picture; choose svg, png, pdf or html"):
        trace_export.draw_schedules("1f1b,zb-h1", 4, 8, path=tmp_path / "a.pftrace")
    _, files = trace_export.draw_schedules("1f1b,zb-h1", 4, 8, path=tmp_path, formats="html")
    assert [file.name for file in files] == ["pipeline_profile.html"]


def test_wrong_values_are_refused() -> None:
    wrong = [
        FigureStyle(theme="pink"),  # type: ignore[arg-type]
        FigureStyle(legend="left"),  # type: ignore[arg-type]
        FigureStyle(width_mm=-1),
        FigureStyle(steps=0),
        FigureStyle(first_microbatch=2),
        FigureStyle(title=3),  # type: ignore[arg-type]
    ]
    run = trace_export.simulate("1f1b", 2, 2)
    for style in wrong:
        name = next(name for name, value in vars(style).items() if value != vars(FigureStyle())[name])
        with pytest.raises(UsageError, match=f"^figure.{name}: "):
            run.write("a.svg", figure=style)
    assert replace(wrong[0], theme="dark") == FigureStyle(theme="dark")
