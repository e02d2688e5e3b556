"""The still picture: every block where its times say, numbers that fit, readable in light and dark."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser

from tests.support.browser import opened, pixels, screenshot
from tests.support.profiles import concluded
from trace_export.analysis.bubbles import Bubbles
from trace_export.chart.chart import Chart
from trace_export.chart.colours import FILLS, IDLE_FILLS, IDLE_GRAYS, TEXT, shade
from trace_export.chart.layout import ChartOptions, Overlay, lay_out
from trace_export.errors import NothingToExportError, UsageError
from trace_export.model import Profile
from trace_export.schedules.schedule import schedule
from trace_export.schedules.simulate import Costs, simulate
from trace_export.selection import Numbers
from trace_export.steps.idle import CAUSES
from trace_export.writers.pictures import picture
from trace_export.writers.pictures.style import FigureStyle
from trace_export.writers.pictures.svg import ticks_until

MS = 1_000_000
SVG = "{http://www.w3.org/2000/svg}"
BLOCK = re.compile(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h-[\d.]+z")


def run_of(name: str, stages: int, microbatches: int, steps: int = 1) -> Profile:
    """`steps` equal steps of a simulated schedule, 5 ms apart: F, input gradient and W take 1, 1 and 1 ms."""
    one = simulate(schedule(name, stages, microbatches), Costs(1 * MS, 1 * MS, 1 * MS))
    length = int(one.spans["end_ns"].max()) + 5 * MS  # type: ignore[arg-type]
    spans = [
        one.spans.with_columns(pl.col("start_ns", "end_ns") + n * length, step=pl.lit(n, pl.Int32))
        for n in range(steps)
    ]
    return concluded(replace(one, spans=pl.concat(spans)))


def drawn(chart: Chart, tmp_path: Path, **options: object) -> ElementTree.Element:
    path = tmp_path / "chart.svg"
    picture.write(chart, path, "svg", **options)  # type: ignore[arg-type]
    return ElementTree.fromstring(path.read_bytes())


def blocks_of(root: ElementTree.Element) -> pl.DataFrame:
    """fill, x, y, w, h of every block in the picture."""
    rows = [
        (path.get("fill"), *map(float, block))
        for path in root.iter(f"{SVG}path")
        if path.get("fill")
        for block in BLOCK.findall(path.get("d", ""))
    ]
    return pl.DataFrame(rows, schema=["fill", "x", "y", "w", "h"], orient="row")


def texts_of(root: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(("name", "stages", "microbatches"), [("1f1b", 4, 8), ("zb-h1", 4, 8), ("interleaved", 4, 8)])
def test_blocks_lie_where_their_times_say(name: str, stages: int, microbatches: int, tmp_path: Path) -> None:
    profile = run_of(name, stages, microbatches)
    root = drawn(lay_out(profile), tmp_path)
    chunks = 2 if name == "interleaved" else 1
    expected = profile.spans.select("rank", "start_ns", "end_ns", "kind", "chunk").with_columns(
        fill=pl.Series([shade(k, c, chunks) for k, c in profile.spans.select("kind", "chunk").iter_rows()])
    )
    result = blocks_of(root).with_columns(rank=pl.col("y").rank("dense").cast(pl.Int32) - 1)
    assert result["rank"].n_unique() == stages
    span = int(expected["end_ns"].max())  # type: ignore[arg-type]
    left, right = result["x"].min(), (result["x"] + result["w"]).max()
    scale = (right - left + 1) / span  # type: ignore[operator]
    both = expected.sort("rank", "start_ns").hstack(result.sort("rank", "x").select("x", "w", shown=pl.col("fill")))
    assert (both["fill"] == both["shown"]).all()
    off = both.select(
        x=(pl.col("x") - left - pl.col("start_ns") * scale).abs().max(),
        w=(pl.col("w") + 1 - (pl.col("end_ns") - pl.col("start_ns")) * scale).abs().max(),
    )
    assert max(off.row(0)) < 0.1  # pixels


def test_overlapped_pairs_name_both(tmp_path: Path) -> None:
    profile = run_of("dualpipev", 2, 6)
    pairs = profile.spans.filter(pl.col("kind") == "FB")
    assert len(pairs)
    texts = texts_of(drawn(lay_out(profile), tmp_path))
    assert {f"{f}+{b}" for f, b in pairs.select("microbatch", "microbatch_b").iter_rows()} <= set(texts)
    assert "forward + backward, overlapped" in texts
    assert "forward of chunk 1" in texts
    swatches = [rect.get("fill") for rect in ElementTree.parse(tmp_path / "chart.svg").iter(f"{SVG}rect")]
    assert len({*swatches} - {None}) == len([fill for fill in swatches if fill])
    assert any(text.startswith("7+13: the forward of micro-batch 7") for text in texts)


def test_bubbles_are_those_of_the_formula(tmp_path: Path) -> None:
    profile = run_of("1f1b", 4, 8)
    root = drawn(lay_out(profile), tmp_path, bubbles=Bubbles(profile).ranks)
    texts = texts_of(root)
    assert texts.count(f"{3 / (8 + 3):.1%}") == 4  # (p - 1) / (m + p - 1) on each of the stages
    assert "without the optimizer" in " ".join(texts)


def test_the_heading_has_the_time_of_which_bubbles_are_shares(tmp_path: Path) -> None:
    """An optimizer after the last backward is drawn, and is no part of either."""
    profile = run_of("1f1b", 2, 4)
    end = int(profile.spans["end_ns"].max())  # type: ignore[arg-type]
    optimizer = profile.spans.unique("rank").with_columns(
        start_ns=pl.lit(end, pl.Int64), end_ns=pl.lit(end + 3 * MS, pl.Int64), kind=pl.lit("OPT"),
        microbatch=pl.lit(None, pl.Int32), id=pl.col("id") + profile.spans.height,
    )  # fmt: skip
    whole = concluded(replace(profile, spans=pl.concat([profile.spans, optimizer]).sort("start_ns")))
    root = drawn(lay_out(whole), tmp_path, bubbles=Bubbles(whole).ranks)
    assert f"step 0 · pipeline time {end / MS:g} ms" in texts_of(root)
    assert f"{1 / (4 + 1):.1%}" in texts_of(root)  # (p - 1) / (m + p - 1)
    assert texts_of(root).count("OPT") == 2


@pytest.mark.parametrize("spread", [0.03, 0.2])
def test_blocks_of_about_one_width_have_all_their_numbers_or_none(spread: float, tmp_path: Path) -> None:
    """Measured blocks differ by a little: here by up to 3 % or 20 %, at whatever width numbers begin to fit."""
    profile = run_of("1f1b", 2, 14)
    shorter = ((pl.col("end_ns") - pl.col("start_ns")) * spread * (pl.col("microbatch") * 7 % 5) / 4).cast(pl.Int64)
    chart = lay_out(replace(profile, spans=profile.spans.with_columns(end_ns=pl.col("end_ns") - shorter)))
    seen = set()
    for millimetres in range(60, 240, 6):
        root = drawn(chart, tmp_path, style=FigureStyle(width_mm=millimetres))
        numbers = [text.text for group in root.iter(f"{SVG}g") for text in group.iter(f"{SVG}text")]
        counts = {numbers.count(str(n)) for n in range(14)}
        assert counts in ({0}, {2}, {4})
        seen |= counts
    assert {0, 4} <= seen


def test_causes_of_idle_time_are_told_apart_in_grey(tmp_path: Path) -> None:
    causes = list(IDLE_GRAYS)
    assert set(IDLE_GRAYS) == set(IDLE_FILLS)
    idle = pl.DataFrame(
        {
            "stage": [0] * len(causes), "start_ns": [MS * n for n in range(len(causes))],
            "end_ns": [MS * (n + 1) for n in range(len(causes))], "name": causes, "cause": causes,
            "category": ["bubble"] * len(causes), "step": [0] * len(causes),
        },
        schema_overrides={"stage": pl.Int32, "step": pl.Int32},
    )  # fmt: skip
    chart = lay_out(run_of("1f1b", 2, 4), ChartOptions(overlays=(Overlay("stage {} · idle", idle),)))
    root = drawn(chart, tmp_path, style=FigureStyle(theme="grayscale"))
    patterns = {each.get("id"): ElementTree.tostring(each[1]) for each in root.iter(f"{SVG}pattern")}
    assert len(patterns) == len(causes)
    looks = {(fill, patterns[fill[1:]]) for fill in IDLE_GRAYS.values()}
    assert len({fill for fill, _ in looks}) == len({lines for _, lines in looks}) == len(causes)
    used = {path.get("fill") for path in root.iter(f"{SVG}path")}
    assert {f"url(#{fill[1:]})" for fill in IDLE_GRAYS.values()} <= used


def test_steps_are_panels_and_can_be_chosen(tmp_path: Path) -> None:
    chart = lay_out(run_of("gpipe", 2, 2, steps=5))
    headings = [text for text in texts_of(drawn(chart, tmp_path)) if text.startswith("step ")]
    assert headings == [f"step {n} · 6 ms" for n in range(3)]  # (m + p - 1) (F + B)
    assert "The first 3 of 5 steps; --steps chooses others." in texts_of(drawn(chart, tmp_path))
    chosen = drawn(chart, tmp_path, steps=Numbers.parse("1-4", "--steps"))
    headings = [text for text in texts_of(chosen) if text.startswith("step ")]
    assert headings == [f"step {n} · 6 ms" for n in range(1, 5)]
    assert len(blocks_of(chosen)) == 4 * 2 * 4
    with pytest.raises(NothingToExportError, match="no block to draw; widen `steps`"):
        drawn(chart, tmp_path, steps=Numbers.parse("9", "--steps"))


def test_blocks_of_no_step_do_not_squeeze_the_steps(tmp_path: Path) -> None:
    profile = run_of("gpipe", 2, 2)
    stray = profile.spans.with_columns(
        pl.col("start_ns", "end_ns") - 3_600_000 * MS, pl.col("id") + profile.spans.height, step=pl.lit(None, pl.Int32)
    )
    both = lay_out(replace(profile, spans=pl.concat([stray, profile.spans])))
    texts = texts_of(drawn(both, tmp_path))
    assert [text for text in texts if text.startswith("step ")] == ["step 0 · 6 ms"]
    assert "Blocks outside of any step are left out." in texts
    alone = texts_of(drawn(lay_out(replace(profile, spans=stray)), tmp_path))
    assert "outside of any step · 6 ms" in alone


def test_guesses_are_said(tmp_path: Path) -> None:
    profile = run_of("gpipe", 2, 2)
    assert not any("inferred" in text for text in texts_of(drawn(lay_out(profile), tmp_path)))
    guessed = replace(profile, spans=profile.spans.with_columns(labels=pl.lit("inferred")))
    assert "The numbers in some blocks are inferred, not recorded." in texts_of(drawn(lay_out(guessed), tmp_path))


def test_overlapping_blocks_lie_beside_each_other(tmp_path: Path) -> None:
    profile = run_of("gpipe", 1, 1)
    twice = profile.spans.with_columns(pl.col("start_ns", "end_ns") + MS // 2, pl.col("id") + profile.spans.height)
    profile = replace(profile, spans=pl.concat([profile.spans, twice]))
    result = blocks_of(drawn(lay_out(profile), tmp_path))
    assert len(result) == 4
    numbered = result.with_row_index("n")
    pairs = numbered.join(numbered, how="cross").filter(pl.col("n") != pl.col("n_right"))
    apart = (pl.col("x") + pl.col("w") <= pl.col("x_right")) | (pl.col("x_right") + pl.col("w_right") <= pl.col("x"))
    above = (pl.col("y") + pl.col("h") <= pl.col("y_right")) | (pl.col("y_right") + pl.col("h_right") <= pl.col("y"))
    assert pairs.select((apart | above).all()).item()


def test_bubbles_by_cause_lie_in_their_step(tmp_path: Path) -> None:
    profile = run_of("gpipe", 2, 2, steps=2)
    profile = replace(profile, spans=profile.spans.with_columns(run=pl.lit(0, pl.Int32)))
    root = drawn(
        lay_out(profile, ChartOptions(overlays=(Overlay("stage {} · idle", Bubbles(profile).slices),))), tmp_path
    )
    texts = texts_of(root)
    assert [text for text in texts if text.startswith("step ")] == ["step 0 · 6 ms", "step 1 · 6 ms"]
    assert {"idle: warm-up", "idle: cool-down"} <= set(texts)
    # (p - 1)(F + B) on each of two ranks, in two steps, against m (F + B) of work.
    widths = blocks_of(root).group_by(idle=~pl.col("fill").is_in(list(FILLS.values()))).agg(pl.col("w").sum())
    work, idle = (widths.filter(pl.col("idle") == i)["w"].item() for i in (False, True))
    assert idle / work == pytest.approx(1 / 2, rel=0.02)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    nasty = '</text><script>&amp;"\x00\x1b[31m\ud800\n'.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    profile = run_of("gpipe", 1, 1)
    spans = profile.spans.with_columns(
        kind=pl.lit(None, pl.String), marker=pl.lit(nasty), end_ns=pl.col("start_ns") + MS
    )
    root = drawn(lay_out(replace(profile, spans=spans)), tmp_path)
    assert not list(root.iter(f"{SVG}script"))
    assert any(text.startswith('</text><script>&amp;"\\x00\\x1b[31m') for text in texts_of(root))


def test_a_png_too_large_to_open_is_refused(tmp_path: Path) -> None:
    chart = lay_out(run_of("gpipe", 1, 1, steps=2000))
    with pytest.raises(UsageError, match=r"a png of 8\d\d × 1\d{5} pixels is too large; give fewer `steps`"):
        picture.write(chart, tmp_path / "x.png", "png", steps=Numbers.parse("0-1999", "--steps"))
    picture.write(chart, tmp_path / "x.png", "png")


@pytest.mark.parametrize("stages", [4, 64])
def test_numbers_fit_into_their_blocks(stages: int, tmp_path: Path, browser: Browser) -> None:
    """Measured with the browser's own fonts: a number is within the block that it stands in."""
    profile = run_of("1f1b", stages, 24 if stages == 4 else 128)
    path = tmp_path / "chart.svg"
    picture.write(lay_out(profile), path, "svg")
    with opened(browser, path) as page:
        numbers = page.evaluate(
            "() => [...document.querySelectorAll('.n text')].map((text) => text.getBBox())"
            ".map((box) => [box.x, box.y, box.width, box.height])"
        )
    blocks = blocks_of(ElementTree.parse(path).getroot()).sort("y", "x")
    assert (len(numbers) > 150) == (stages == 4)
    for x, y, width, height in numbers:
        middle = pl.col("y") <= y + height / 2, pl.col("y") + pl.col("h") >= y + height / 2
        around = blocks.filter(*middle, pl.col("x") <= x + width / 2, pl.col("x") + pl.col("w") >= x + width / 2)
        assert len(around) == 1
        assert around["x"].item() <= x + 0.5
        assert around["x"].item() + around["w"].item() >= x + width - 0.5


def test_light_dark_and_png_show_the_colours(tmp_path: Path, browser: Browser) -> None:
    chart = lay_out(run_of("zb-h1", 2, 4))
    for format in ("svg", "png"):
        picture.write(chart, tmp_path / f"chart.{format}", format)
    blocks = blocks_of(ElementTree.parse(tmp_path / "chart.svg").getroot())
    points = [(2.0, 2.0), *((x + 3, y + 3) for _, x, y, _, _ in blocks.iter_rows())]
    with browser.new_page() as helper:
        for scheme, paper in (("light", "#ffffff"), ("dark", "#0d1117")):
            with opened(browser, tmp_path / "chart.svg", color_scheme=scheme) as page:
                shown = screenshot(page)
            assert pixels(helper, shown, points) == [paper, *blocks["fill"]]
        sharp = [(2 * x, 2 * y) for x, y in points]
        assert pixels(helper, (tmp_path / "chart.png").read_bytes(), sharp) == ["#ffffff", *blocks["fill"]]


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_on_every_fill_is_readable() -> None:
    assert set(CAUSES.values()) - {"unknown cause"} == set(IDLE_FILLS)
    for kind in (*FILLS, *IDLE_FILLS, "unknown cause"):
        for chunk in range(3):
            assert (luminance(shade(kind, chunk, 3)) + 0.05) / (luminance(TEXT) + 0.05) >= 7


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-3, 1e9), st.integers(4, 20))
def test_ticks_are_round_and_few(end: float, count: int) -> None:
    ticks = ticks_until(end, count)
    assert ticks[0] == 0
    assert ticks[-1] <= end * (1 + 1e-6)
    assert 0.35 * count <= len(ticks) <= count + 1.01
    step = f"{ticks[1]:e}"
    assert step[0] in "125"
    assert step[1:].startswith(".000000")
