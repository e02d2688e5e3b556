"""Marks that go nowhere, for a run that shall not be marked although its script says so."""

from __future__ import annotations

from trace_export.instrument.marks import Mark, Where


class Off:
    """Takes marks and drops them."""

    def begin(self, mark: Mark, where: Where) -> None:
        pass

    def end(self, token: None) -> None:
        pass
