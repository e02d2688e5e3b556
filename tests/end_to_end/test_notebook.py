"""The tour as a notebook: it is that of the script, it runs in a Jupyter kernel, and JupyterLab shows the chart.

JupyterLab is not among the dependencies of the tests: `.ci/notebook` installs it and names its interpreter.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from playwright.sync_api import Browser, Frame, Page, expect

from tests.conftest import ROOT
from tests.support import notebook

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
KERNEL = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
EXECUTE = """
import sys, nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(book)
place = {"metadata": {"path": sys.argv[2]}}
nbclient.NotebookClient(book, timeout=300, kernel_name="python3", resources=place).execute()
nbformat.write(book, sys.argv[3])
"""


def test_the_notebook_is_that_of_the_script() -> None:
    assert notebook.PAGE.read_text("utf-8") == notebook.notebook(), "write it anew: python -m tests.support.notebook"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebook with the outputs of a Jupyter kernel."""
    pytest.importorskip("nbclient")
    out = tmp_path_factory.mktemp("notebook") / "example.ipynb"
    arguments = [sys.executable, "-c", EXECUTE, str(notebook.PAGE), str(out.parent), str(out)]
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_the_notebook_runs(executed: Path) -> None:
    cells = [cell for cell in orjson.loads(executed.read_bytes())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(notebook.cells()) + 1))
    printed = ["".join("".join(output.get("text", "")) for output in cell["outputs"]) for cell in cells]
    assert "stage_origin" in printed[0]
    assert "wrote pipeline_profile.svg" in printed[-1]
    (chart,) = (output for cell in cells for output in cell["outputs"] if output["output_type"] == "execute_result")
    assert "".join(chart["data"]["text/html"]).startswith("<iframe ")


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """The address of a JupyterLab that serves `folder` on this machine, with its kernels."""
    program = os.environ.get("TRACE_EXPORT_NOTEBOOK_PYTHON")
    if not program:
        pytest.skip("TRACE_EXPORT_NOTEBOOK_PYTHON names no interpreter with JupyterLab; .ci/notebook does")
    options = ["--no-browser", "--ip=127.0.0.1", "--port=0", f"--ServerApp.root_dir={folder}"]
    options += ["--LabApp.expose_app_in_browser=True", "--ServerApp.allow_root=True", "--LabApp.news_url=None"]
    home = {"HOME": str(folder), "JUPYTER_CONFIG_DIR": str(folder / "config"), "IPYTHONDIR": str(folder / "ipython")}
    command = [program, "-m", "jupyterlab", *options]
    with subprocess.Popen(command, env={**ENVIRONMENT, **home}, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            said = ""
            for line in server.stderr:
                said += line
                if result := re.search(r"http://127\.0\.0\.1:\d+/lab\?token=\w+", line):
                    yield result[0]
                    break
            else:
                pytest.fail(f"JupyterLab did not start:\n{said}")
        finally:
            server.terminate()


def framed(page: Page) -> Frame:
    """The frame of the chart in the output of a cell."""
    handle = page.wait_for_selector(".jp-OutputArea-output iframe", timeout=180_000)
    assert handle
    handle.scroll_into_view_if_needed()
    result = handle.content_frame()
    assert result
    result.wait_for_selector("#chart", timeout=60_000)
    return result


@pytest.mark.parametrize(("width", "scheme"), [(1600, "light"), (380, "dark")])
def test_jupyterlab_shows_the_chart(width: int, scheme: Any, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shutil.copy(notebook.PAGE, tmp_path)
    with lab(tmp_path) as address:
        running: Browser = request.getfixturevalue("browser")
        context = running.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        outside: list[str] = []
        page.on("requestfinished", lambda request: outside.append(request.url))
        try:
            page.goto(address.replace("/lab?", "/lab/tree/example.ipynb?"))
            page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
            page.wait_for_function(f"() => {KERNEL} === 'idle'", timeout=120_000)
            if width < 1000:
                page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
            page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
            chart = framed(page)
            box = chart.locator("#chart").bounding_box()
            assert box
            assert 0.5 * width < box["width"] < width
            before = chart.locator("#chart").get_attribute("data-to")
            assert before
            chart.locator("#chart").press("w")
            expect(chart.locator("#chart")).not_to_have_attribute("data-to", before)
            colour = chart.evaluate("() => getComputedStyle(document.body).backgroundColor")
            assert colour == ("rgb(13, 17, 23)" if scheme == "dark" else "rgb(255, 255, 255)")
            local = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:", "about:")
            assert [url for url in outside if not url.startswith(local)] == []
        finally:
            context.close()
