"""A new schedule is an order and a row: what docs/adding-a-schedule.md says is executed."""

import re
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.profiles import concluded
from trace_export.model import Plan, Profile
from trace_export.schedules.catalogue import CATALOGUE, TITLES
from trace_export.schedules.schedule import of_plan
from trace_export.schedules.simulate import Costs, simulate

PAGE = (ROOT / "trace_export/docs/adding-a-schedule.md").read_text(encoding="utf-8")


def test_the_schedule_of_the_page_is_generated_and_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.S):
        exec("from __future__ import annotations\n" + code, names)
    monkeypatch.setitem(CATALOGUE, names["NAME"], names["ROW"])
    monkeypatch.setitem(TITLES, names["NAME"], names["ROW"].title)
    (golden,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.S)
    assert of_plan(Plan(names["NAME"], 2, 3)).text() == golden
    run = simulate(of_plan(Plan(names["NAME"], 4, 8)), Costs(1000, 2000))
    result = concluded(Profile(ranks=run.ranks, spans=run.spans)).interpreted.recognition
    assert result.named == Plan(names["NAME"], 4, 8)
