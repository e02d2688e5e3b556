"""A real headless Chromium for the tests of pages and pictures."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.wait import HANGS_S, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--js-flags=--liftoff-only",  # the engine of the Perfetto UI is compiled once, not again for speed
]


def program() -> str:
    """The path of the browser; skips the test where there is none."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        pytest.skip(f"no browser found (looked for {', '.join(PROGRAMS)})")
    return path


@pytest.fixture(scope="session")
def running_browser() -> Iterator[tuple[Browser, asyncio.AbstractEventLoop]]:
    """The one browser of this process, and the event loop that Playwright leaves running in this thread."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * HANGS_S)
    path = program()
    with sync_playwright() as playwright:
        loop = asyncio.get_running_loop()
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running, loop
        asyncio._set_running_loop(loop)
        running.close()


@contextmanager
def in_use(running_browser: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """The browser; before and after it, event loops of other kinds may run."""
    running, loop = running_browser
    asyncio._set_running_loop(loop)
    yield running
    asyncio._set_running_loop(None)


@pytest.fixture
def browser(running_browser: tuple[Browser, asyncio.AbstractEventLoop]) -> Iterator[Browser]:
    """Tests that do not use it may run event loops of their own."""
    with in_use(running_browser) as running:
        yield running


@contextmanager
def opened(browser: Browser, path: Path, **options: object) -> Iterator[Page]:
    """The local file in a tab of its own; at the end it must have asked for nothing else and complained of nothing."""
    context = browser.new_context(**{"viewport": {"width": 1300, "height": 700}, **options})  # type: ignore[arg-type]
    context.set_default_timeout(1000 * HANGS_S)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if "data:" not in request.url else None)
    page.goto(path.as_uri())
    yield page
    context.close()
    assert complaints == [path.as_uri()]


def screenshot(shown: Page | Locator) -> bytes:
    """A PNG of what is shown. On a busy machine Chromium now and then refuses to take it, and takes it when asked
    again."""
    from playwright.sync_api import Error

    taken: list[bytes] = []

    def take() -> list[bytes]:
        try:
            taken.append(shown.screenshot())
        except Error as error:
            if "Unable to capture screenshot" not in error.message:
                raise
        return taken

    wait_until(take)
    return taken[0]


def pixels(page: Page, png: bytes, points: list[tuple[float, float]]) -> list[str]:
    """The colours of a PNG at points, as #rrggbb, decoded by the browser."""
    script = """async ([data, points]) => {
      const image = new Image();
      image.src = "data:image/png;base64," + data;
      await image.decode();
      const canvas = new OffscreenCanvas(image.width, image.height), pen = canvas.getContext("2d");
      pen.drawImage(image, 0, 0);
      return points.map(([x, y]) => "#" + [...pen.getImageData(x, y, 1, 1).data].slice(0, 3)
        .map((part) => part.toString(16).padStart(2, "0")).join(""));
    }"""
    colours: list[str] = page.evaluate(script, [base64.b64encode(png).decode(), points])
    return colours
