"""An approval system for tests: answers from a script and records the questions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, final

import anyio

from amplifier.models import ApprovalDefault

from .script import Script, Scripted


@final
class MockApprovalSystem(Scripted):
    """Answers with one scripted option after the other; without a script, with the default of each question.

    Args:
        answers: What to answer, in order, or a function of the prompt that answers every question; an exception is raised.
        delay: Seconds to wait before each answer.

    Attributes:
        requests: Prompt, options, timeout and default of every question.
    """

    def __init__(
        self,
        answers: Sequence[str | BaseException] | Callable[[str], Awaitable[str]] | None = None,
        *,
        delay: float = 0.0,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self._delay = delay
        self._answer = answers if callable(answers) else None
        steps = None if answers is None or callable(answers) else answers
        self._script: Script[object] | None = None if steps is None else Script("MockApprovalSystem", steps, "answer")

    def __repr__(self) -> str:
        return f"<MockApprovalSystem asked {len(self.requests)} times>"

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: ApprovalDefault) -> str:
        """Note the question and give the next answer.

        Raises:
            AssertionError: The script has no answer left.
        """
        self.requests.append({"prompt": prompt, "options": list(options), "timeout": timeout, "default": default})
        answer: object = "Allow" if default == "allow" else "Deny"
        if self._script is not None:
            answer = self._script.take(f"request_approval({prompt!r})")
        elif self._answer is not None:
            answer = await self._answer(prompt)
        if self._delay > 0:
            await anyio.sleep(self._delay)
        if isinstance(answer, BaseException):
            raise answer
        return str(answer)
