"""What a user sees on opening a trace in the real Perfetto UI, without a click: tracks as text, blocks as colours."""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
import pytest
from playwright.sync_api import Browser

from tests.conftest import Cli
from tests.support.browser import browser as browser
from tests.support.browser import in_use
from tests.support.charts import write_trace
from tests.support.perfetto_ui import Ui, expand, serving, ui_colour
from tests.support.profiles import profile, span
from tests.writers.pictures.test_picture import run_of
from tests.writers.traces.test_writers import full_chart
from trace_export.chart.colours import IDLE_SEEDS, SEEDS, task_seed
from trace_export.chart.layout import lay_out
from trace_export.read import LoadOptions
from trace_export.run import Run
from trace_export.viewer import serve
from trace_export.viewer.first_step import first_step, track_to_pin
from trace_export.writers.traces import perfetto

ENOUGH = 400
"""Pixels of a colour that are blocks, not the edges of letters."""


STEP_NS = 10_000_000
"""ZB-H1 with p = 2, m = 3 and F = B = W = 1 ms: m (F + B + W) + (p - 1)(F + B - W)."""
VISIBLE_NS = "app.trace.timeline.visibleWindow.toTimeSpan().duration"
PINNED = "app.trace.workspaces.currentWorkspace.pinnedTracks.map((track) => track.name)"


@dataclass(frozen=True)
class Loaded:
    """The UI, and what it did when it was loaded: the names of the tracks that it pinned, and the hosts that it asked,
    which should be `host` alone."""

    ui: Ui
    pinned: list[str]
    asked: set[str]
    host: str


@pytest.fixture(scope="module")
def loaded(
    running_browser: tuple[Browser, asyncio.AbstractEventLoop], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    """By the link of `open --offline`, zoomed to the first step. In Chrome's format, of which the UI shows the number
    of the thread behind the name of a track."""
    run = Run(run_of("zb-h1", 2, 3, steps=2), LoadOptions(Path()), _clocks="one")
    folder = tmp_path_factory.mktemp("ui")
    (path,) = run.write(folder / "a name+1 ä.json.gz", "chrome", critical_path=True, gzip=True)
    with serving(path) as server:
        with in_use(running_browser) as browser:
            ui = Ui(browser)
            page = ui.page
            asked: list[str] = []
            page.on("requestfinished", lambda request: asked.append(request.url))
            page.goto(serve.link(server, first_step(path), track_to_pin(path)))
            page.get_by_text(re.compile(r"stage 0?1 · rank 0?1")).first.wait_for()
            page.wait_for_function(f"() => Number({VISIBLE_NS}) === {STEP_NS}")
            page.wait_for_function(f"() => {PINNED}.length > 0")
            pinned = page.evaluate(PINNED)
            assert server.fetched
            hosts = {urlsplit(url).netloc for url in asked if not url.startswith(("data:", "blob:"))}
        yield Loaded(ui, pinned, hosts, server.host)
        with in_use(running_browser):
            page.context.close()


@pytest.fixture
def ui(loaded: Loaded, browser: Browser) -> Ui:
    """For one trace after another."""
    return loaded.ui


@pytest.mark.parametrize(
    ("seed", "colour"),
    [
        ("F", "#dcb854"), ("B", "#a2823a"), ("W", "#377997"), ("Optimizer", "#3f919e"), ("F+B", "#af7c3a"),
        ("FB", "#747ce6"), ("B▼", "#50a33e"), ("backward_step", "#f3a3d2"),
    ],
)  # fmt: skip
def test_our_colour_rule_is_that_of_the_ui(seed: str, colour: str) -> None:
    """Colours that the UI's own code gave."""
    assert ui_colour(seed) == colour


def test_the_first_step_is_shown_and_the_critical_path_pinned(loaded: Loaded) -> None:
    """Without a click, and nothing leaves the machine."""
    assert {re.sub(r" \d+$", "", each) for each in loaded.pinned} == {"critical path"}
    assert loaded.asked == {loaded.host}


def test_idle_time_is_drawn_in_its_own_colours(ui: Ui, samples: Path, tmp_path: Path, run_cli: Cli) -> None:
    done = run_cli(samples / "ascend", "--bubbles", "--format", "perfetto", "--out", tmp_path / "x.pftrace")
    assert done.returncode == 0, done.stderr
    picture = ui.picture(tmp_path / "x.pftrace", ["PP chart", "Steps", "stage 0 · idle"])
    for cause in ("warm-up", "waiting for backward", "cool-down"):
        assert picture.pixels(ui_colour(IDLE_SEEDS[cause])) > ENOUGH, cause


def test_paddle_sample_in_json(ui: Ui, samples: Path, tmp_path: Path, run_cli: Cli) -> None:
    done = run_cli("--devices", "0,1,2,3", "--log_dir", samples / "paddle" / "single", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    trace = tmp_path / "pipeline_profile.json"
    stages = [f"stage {i} · rank {i}" for i in range(4)]
    picture = ui.picture(trace, ["PP chart", "Steps", *stages])
    for kind in ("F", "B"):
        assert picture.pixels(ui_colour(kind)) > ENOUGH


def test_every_rank_and_every_stream_below_its_stage(ui: Ui, tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    write_trace(perfetto, full_chart(tmp_path), path)
    page = ui.opened(path)
    closed = ui.seen(page, ["Steps", "stage 0 · rank 0", "stage 1 · rank 2", "stages busy", "Ranks"])
    expand(page, "^(stage 0 · rank 0|Ranks|rank 0)$")
    opened = ui.seen(page, ["rank 1", "stream 7 · compute", "stream 13", "communication"])
    for hidden in ("rank 1\n", "stream 7"):
        assert hidden not in closed.text
    for kind in ("F", "B", "OPT"):
        assert closed.pixels(ui_colour(SEEDS[kind])) > ENOUGH
    assert opened.text.count("stream 13") == opened.text.count("communication")  # its two lanes are one track
    assert opened.pixels(ui_colour(SEEDS["F"])) > 1.3 * closed.pixels(ui_colour(SEEDS["F"]))
    gemm = pl.DataFrame({"name": ["gemm"]}).select(task_seed()).item()
    assert opened.pixels(ui_colour(gemm)) > ENOUGH


def test_all_kinds_and_overlapping_blocks(ui: Ui, tmp_path: Path) -> None:
    """Blocks as DualPipeV has them; two overlap and lie on two lanes of one track."""
    blocks = [
        span(0, "F", 0, 0, 100),
        span(0, "FB", 1, 100, 300, microbatch_b=0),
        span(0, "F", 2, 250, 400),
        span(0, "W", 0, 400, 500),
        span(0, "B", 1, 500, 700),
        span(0, "OPT", None, 700, 800),
    ]
    write_trace(perfetto, lay_out(profile(blocks, {0: 0})), tmp_path / "a.pftrace")
    picture = ui.picture(tmp_path / "a.pftrace", ["stage 0 · rank 0"])
    assert picture.text.count("stage 0 · rank 0") == picture.text.count("Steps")
    for seed in SEEDS.values():
        assert picture.pixels(ui_colour(seed)) > ENOUGH
