"""Errors about data and about what modules return."""

from __future__ import annotations

from collections.abc import Iterable

from ._base import AmplifierError

Problem = tuple[str, str]
"""Where (a path such as ``content[2].text`` or ``$.session.context``) and what is wrong there."""


class _ProblemsError(AmplifierError, ValueError):
    """Carries every problem at once, so that a person can fix a file in one go."""

    def __init__(self, problems: Iterable[Problem], *, subject: str) -> None:
        self.problems: list[Problem] = list(problems)
        self.subject = subject
        lines = [f"{path}: {problem}" if path else problem for path, problem in self.problems]
        if len(lines) == 1:
            message = f"{subject}: {lines[0]}"
        else:
            message = f"{subject}: {len(lines)} problems\n" + "\n".join(f"  - {line}" for line in lines)
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_problems_error, (type(self), self.problems, self.subject), self.__dict__)


def _rebuild_problems_error(cls: type[_ProblemsError], problems: list[Problem], subject: str) -> _ProblemsError:
    return cls(problems, subject=subject)


class PlanError(_ProblemsError):
    """The mount plan cannot be used.

    Attributes:
        problems: Pairs of ``$.path`` and what is wrong there, in reading order.
    """

    def __init__(self, problems: Iterable[Problem], *, subject: str = "invalid mount plan") -> None:
        super().__init__(problems, subject=subject)


class ModelError(_ProblemsError):
    """Data does not fit a model, or a value cannot be written as JSON.

    Attributes:
        problems: Pairs of path (``content[2].text``; empty for the whole value) and what is wrong there.
        subject: What was being read or written, usually the model's name.
    """


class ResultError(_ProblemsError):
    """The model's answer does not fit the type that the caller asked for, also after it was shown the problems.

    Attributes:
        problems: Pairs of path (``$.items[2].price``; ``$`` for the whole value) and what is wrong there.
        result_type: The name of the type.
        answer: The answer as the model gave it, at most 2,000 characters of it.
    """

    def __init__(
        self, problems: Iterable[Problem], *, subject: str | None = None, result_type: str = "", answer: str = ""
    ) -> None:
        super().__init__(problems, subject=subject or f"the answer does not fit {result_type or 'the result type'}")
        self.result_type = result_type
        self.answer = answer


class ContractError(AmplifierError):
    """A module broke the contract of its kind at run time, for example an orchestrator that returned no text.

    Attributes:
        module: The module's id or class name.
        clause: The clause of the contract, where one is known.
    """

    def __init__(self, message: str, *, module: str | None = None, clause: str | None = None) -> None:
        super().__init__(message)
        self.module = module
        self.clause = clause


class ContainedError(AmplifierError):
    """Third-party code raised an exception that is no ``Exception``, and it was contained as a failure of that code.

    ``SystemExit`` from argparse inside a tool is the usual case, the panic of a Rust extension another. ``__cause__`` is what
    was raised. KeyboardInterrupt, GeneratorExit and real cancellation are never turned into this.
    """


class SpuriousCancellation(ContainedError):
    """Third-party code raised the backend's cancellation although nothing had cancelled it.

    On asyncio it is enough to await a future that was cancelled elsewhere.
    """
