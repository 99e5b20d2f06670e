"""The display contract: its shape."""

from __future__ import annotations

import inspect
from typing import Literal

from amplifier.contracts import DisplaySystem


class Board:
    def show_message(self, message: str, level: Literal["info", "warning", "error"], source: str = "hook") -> None:
        return None


def test_a_class_that_shows_messages_is_a_display() -> None:
    display: DisplaySystem = Board()
    assert isinstance(display, DisplaySystem)


def test_what_shows_nothing_is_no_display() -> None:
    assert not isinstance(object(), DisplaySystem)


def test_showing_is_sync_and_its_default_source_is_a_hook() -> None:
    assert not inspect.iscoroutinefunction(DisplaySystem.show_message)
    assert inspect.signature(DisplaySystem.show_message).parameters["source"].default == "hook"
