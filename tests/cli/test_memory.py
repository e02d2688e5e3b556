"""What the process of a command asks of its allocators."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest.mock import patch

import pytest

from trace_export.cli.memory import give_back, keep


@pytest.mark.parametrize("asked", [give_back, keep])
def test_what_the_user_has_set_stays(asked: Callable[[], None]) -> None:
    with patch.dict(os.environ, {"_RJEM_MALLOC_CONF": "narenas:1"}):
        asked()
        assert os.environ["_RJEM_MALLOC_CONF"] == "narenas:1"


def test_freed_pages_are_not_kept() -> None:
    with patch.dict(os.environ):
        os.environ.pop("_RJEM_MALLOC_CONF", None)
        give_back()
        assert "muzzy_decay_ms:0" in os.environ["_RJEM_MALLOC_CONF"]
