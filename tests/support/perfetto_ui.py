"""A finished trace as the real Perfetto UI shows it: the bundled one, in headless Chromium."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import hsluv
import pytest

from tests.support.browser import screenshot
from tests.support.wait import HANGS_S
from trace_export.errors import UsageError
from trace_export.viewer import serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NO_SERVICE_WORKER = "delete Navigator.prototype.serviceWorker"
"""For the UI, which ends with an error instead of the trace, now and then, where it may not register its own."""

_COUNT_COLOURS = """async (png) => {
    const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + png)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height).getContext('2d');
    canvas.drawImage(image, 0, 0);
    const data = canvas.getImageData(0, 0, image.width, image.height).data;
    const counts = {};
    for (let i = 0; i < data.length; i += 4) {
        const colour = data[i] << 16 | data[i + 1] << 8 | data[i + 2];
        counts[colour] = (counts[colour] || 0) + 1;
    }
    return counts;
}"""

_OPEN = """async ([name, data]) => {
    const { buffer } = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
    await app.openTraceFromBuffer({ buffer, title: name, fileName: name });
}"""

_IDLE = """async () => {
    for (let attempt = 1; ; attempt++) {
        try { return await globalThis.waitForPerfettoIdle(); } catch (error) { if (attempt == 5) throw error; }
    }
}"""
"""The UI's own function for its tests: no query and no drawing is left to do. It gives up after a minute."""


@dataclass(frozen=True)
class Picture:
    """What a user sees: the text of the page (labels of slices are pixels, not text), and pixels per colour."""

    text: str
    colours: Counter[int]
    png: bytes

    def pixels(self, colour: str) -> int:
        """How many pixels have `colour` (#rrggbb), give or take one step of 255 in each channel."""
        wanted = _channels(int(colour[1:], 16))
        return sum(
            count
            for result, count in self.colours.items()
            if all(abs(a - b) <= 1 for a, b in zip(_channels(result), wanted, strict=True))
        )


def _channels(colour: int) -> tuple[int, int, int]:
    return colour >> 16, colour >> 8 & 255, colour & 255


def ui_colour(seed: str) -> str:
    """The colour that the UI gives to a slice with this correlation id, or without one to this name less its number."""
    hue, lightness = hue_and_lightness(seed)
    return str(hsluv.hsluv_to_hex((hue, 80, lightness)))


def hue_and_lightness(text: str) -> tuple[int, int]:
    """HSLuv hue (degrees) and lightness (percent, saturation is 80) that the UI gives to `text`.

    The rule of the Perfetto UI v52 (ui/src/base/hash.ts and components/colorizer.ts), where JavaScript multiplies in
    doubles and then keeps the low 32 bits, signed.
    """
    return _hash(text, 360), _hash(text + "x", 40) + 40


def _hash(text: str, limit: int) -> int:
    value = 0x811C9DC5 & 0x0FFFFFFF
    units = text.encode("utf-16-le")
    for at in range(0, len(units), 2):
        value = _int32(value ^ int.from_bytes(units[at : at + 2], "little"))
        value = _int32(int(float(value) * 16777619.0))
    return abs(value) % limit


def _int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


class Ui:
    """A tab for the UI, where it shows one trace after another: to load it, which the caller does, takes four times as
    long as to open a trace."""

    def __init__(self, browser: Browser) -> None:
        context = browser.new_context(viewport={"width": 1400, "height": 700})
        context.add_init_script(NO_SERVICE_WORKER)
        context.set_default_timeout(1000 * HANGS_S)
        self._blank = context.new_page()
        self.page = context.new_page()

    def opened(self, trace: Path) -> Page:
        """The UI with `trace` opened, without a click."""
        self.page.evaluate(_OPEN, [str(trace), base64.b64encode(trace.read_bytes()).decode()])
        self.page.wait_for_function("(name) => app.trace?.traceInfo.traceTitle.includes(name)", arg=str(trace))
        self.page.wait_for_selector(".pf-track")
        return self.page

    def picture(self, trace: Path, shows: list[str]) -> Picture:
        """What `seen` sees when the trace is opened."""
        return self.seen(self.opened(trace), shows)

    def seen(self, page: Page, shows: list[str]) -> Picture:
        """The page when all texts of `shows` are on it. Fails when a text does not appear."""
        from playwright.sync_api import TimeoutError as TooLong

        shown = "(texts) => texts.every((t) => document.body.innerText.includes(t))"
        try:
            page.wait_for_function(shown, arg=shows)
        except TooLong:
            pytest.fail(f"not all of {shows} on the page:\n{page.inner_text('body')}")
        page.evaluate(_IDLE)  # slices are drawn after their tracks appear
        png = screenshot(page)
        return Picture(page.inner_text("body"), self._colours(png), png)

    def _colours(self, png: bytes) -> Counter[int]:
        counts = self._blank.evaluate(_COUNT_COLOURS, base64.b64encode(png).decode())
        return Counter({int(colour): n for colour, n in counts.items()})


@contextmanager
def serving(trace: Path) -> Iterator[serve.TraceServer]:
    """The project's own offline server, as `trace-export open --offline` runs it. Skips the test where the UI is not
    there."""
    try:
        offline = serve.with_bundled_ui(trace)
    except UsageError as error:
        pytest.skip(str(error))
    with offline as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def expand(page: Page, tracks: str) -> None:
    """Opens the groups whose names match a regular expression, by a command of the UI."""
    page.evaluate("(tracks) => app.commands.runCommand('dev.perfetto.ExpandTracksByRegex', tracks)", tracks)
