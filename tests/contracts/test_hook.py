"""The hook contract: its shape, and what else can be registered."""

from __future__ import annotations

from typing import Any, get_args

from amplifier.contracts import Handler, HookHandler, OnFailure
from amplifier.models import HookResult


class Watcher:
    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        return HookResult()


async def watch(event: str, data: dict[str, Any]) -> HookResult:
    return HookResult()


def watch_in_place(event: str, data: dict[str, Any]) -> None:
    return None


def test_an_async_callable_is_a_handler_as_object_or_function() -> None:
    handlers: list[HookHandler] = [Watcher(), watch]
    assert all(isinstance(handler, HookHandler) for handler in handlers)


def test_what_cannot_be_called_is_no_handler() -> None:
    assert not isinstance("watch", HookHandler)


def test_sync_functions_can_be_registered_too() -> None:
    handlers: list[Handler] = [Watcher(), watch, watch_in_place]
    assert all(callable(handler) for handler in handlers)


def test_a_failing_handler_is_skipped_or_denies() -> None:
    assert get_args(OnFailure) == ("continue", "deny")
