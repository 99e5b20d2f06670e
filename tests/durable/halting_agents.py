"""Agents for worker processes that are suspended and killed: they halt where a test wants, and go on when it allows that."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from amplifier import AmplifierSession, ChatRequest, ToolResult
from amplifier.contracts import CurrentCall, Done, NotDone, Reconciled, current_call
from amplifier.testing import MockProvider
from tests.durable.agents import agent, effect_agent, eventually, tool
from tests.modules.durable_agent import EffectTool


async def halt(folder: Path, where: str) -> None:
    """Note that a place is reached, and wait until the test lets it go on."""
    (folder / f"at {where}").touch()
    await eventually(anyio.Path(folder / f"go on {where}").exists, 600.0)


def halting_agent(folder: Path) -> Callable[[str], AmplifierSession]:
    """Looks, pays and answers; halts while it looks, and before it answers."""

    async def answer(request: ChatRequest) -> Any:
        """By the conversation alone, so that every process gets the same."""
        results = sum(message.role == "tool" for message in request.messages)
        if results == 2:
            await halt(folder, "answer")
            return "Paid."
        return [("pay", {})] if results else [("look", {})]

    async def look(given: Any) -> str:
        await halt(folder, "look")
        return "two shelves"

    def make_session(session_id: str) -> AmplifierSession:
        pay = EffectTool("pay", folder / f"{session_id}.effects", False)
        return agent(MockProvider([answer] * 3), tool("look", look, repeatable=True), pay)(
            session_id
        )

    return make_session


def blocking_agent(folder: Path) -> Callable[[str], AmplifierSession]:
    """Has a tool that blocks the event loop until the test lets it go on; the effects tell how often it ran."""

    def block(given: Any) -> str:
        with (folder / "s.effects").open("a") as file:
            file.write(f"blocked {os.getpid()}\n")
        while not (folder / "go on block").exists():
            time.sleep(0.01)
        return "free again"

    def answer(request: ChatRequest) -> Any:
        return "Done." if request.messages[-1].role == "tool" else [("block", {})]

    return agent(MockProvider([answer] * 2), tool("block", block, repeatable=True))


def poisonous_agent(folder: Path) -> Callable[[str], AmplifierSession]:
    """The session ``bad`` kills its worker with every attempt; the others have effects."""
    innocent = effect_agent(folder)

    def die(given: Any) -> str:
        with (folder / "deaths").open("a") as file:
            file.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def make_session(session_id: str) -> AmplifierSession:
        if session_id != "bad":
            return innocent(session_id)
        return agent(MockProvider([[("die", {})]]), tool("die", die, repeatable=True))(session_id)

    return make_session


class Payment:
    """Notes its effect with its idempotency key, and kills its process before the result is known; afterwards it finds out."""

    name = "pay"
    description = "Pays."
    repeatable = False

    def __init__(self, file: Path, *, dies_first: bool) -> None:
        self._file = file
        self._dies_first = dies_first

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        call = current_call()
        assert call is not None
        begun = self._file.with_suffix(".begun")
        is_first = not begun.exists()
        begun.touch()
        if is_first and self._dies_first:
            os.kill(os.getpid(), signal.SIGKILL)
        with self._file.open("a") as file:
            file.write(f"{call.idempotency_key}\n")
        if is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        return ToolResult(output="paid")

    async def reconcile(self, input: dict[str, Any], call: CurrentCall) -> Reconciled:  # noqa: A002
        effects = self._file.read_text().splitlines() if self._file.exists() else []
        return Done("paid before") if call.idempotency_key in effects else NotDone()


def paying_agent(folder: Path) -> Callable[[str], AmplifierSession]:
    """Pays once; dies after the payment, or before it if the session is ``unpaid``."""

    def pay_or_end(request: ChatRequest) -> Any:
        return "Paid." if request.messages[-1].role == "tool" else [("pay", {})]

    def make_session(session_id: str) -> AmplifierSession:
        pay = Payment(folder / f"{session_id}.effects", dies_first=session_id == "unpaid")
        return agent(MockProvider([pay_or_end] * 2), pay)(session_id)

    return make_session
