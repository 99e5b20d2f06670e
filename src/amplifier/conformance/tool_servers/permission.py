"""Permissions to call tools. A tool may delete or send, so each call has to be permitted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import attrs

from amplifier._internal.json import JSON, visible_text
from amplifier._internal.spelling import suggestion
from amplifier.errors import AmplifierError


class PermissionProblem(AmplifierError, ValueError):
    """A name isn't that of a tool. The text lists the names of all tools."""


def hints_of(tool: dict[str, JSON]) -> dict[str, JSON]:
    """Return the annotations of a listed tool."""
    hints = tool.get("annotations")
    return hints if isinstance(hints, dict) else {}


def is_read_only(tool: dict[str, JSON]) -> bool:
    """Return whether a tool declares that it changes nothing.

    A tool without a hint may do anything.
    """
    return hints_of(tool).get("readOnlyHint") is True


@attrs.frozen(kw_only=True)
class Permissions:
    """The tools of a server, by the decision about them.

    Attributes:
        called: Names of the tools that will be called.
        skipped: Names of the tools that the user left out.
        undecided: Names of the tools that were neither permitted nor left out. They aren't called.
        trusts_hints: True if tools that declare readOnlyHint are called by default.
    """

    called: tuple[str, ...]
    skipped: tuple[str, ...]
    undecided: tuple[str, ...]
    trusts_hints: bool

    def lines(self) -> list[str]:
        """Return the lists for a reader, one line each."""
        why = "declared read-only, or permitted" if self.trusts_hints else "permitted"
        lines = [
            ("will be called", f"({why})", self.called),
            ("will not be called", "(--skip)", self.skipped),
            ("will not be called", "(not permitted)", self.undecided),
        ]
        return [
            visible_text(f"{head} {reason}: {', '.join(names)}", multiline=False)
            for head, reason, names in lines
            if names
        ] or ["there is no tool to call"]

    def without_calls(self) -> Permissions:
        """Return permissions that leave all calls undecided."""
        return attrs.evolve(self, called=(), undecided=self.called + self.undecided)

    def to_type(self, command: Sequence[str]) -> str:
        """Return the command that decides about the undecided tools."""
        return (
            f"{shlex.join(command)} --call-all, or with --call NAME and --skip NAME for each of "
            "them"
        )


def decide(
    tools: Iterable[dict[str, JSON]],
    *,
    call: Sequence[str] = (),
    call_all: bool = False,
    skip: Sequence[str] = (),
    trusts_hints: bool,
) -> Permissions:
    """Sort tools into those to call, skipped ones and undecided ones. Skipping wins.

    Raises:
        PermissionProblem: A name isn't that of a tool.
    """
    offered = {str(tool["name"]): tool for tool in tools}
    for option, names in (("--call", call), ("--skip", skip)):
        for name in names:
            if name not in offered:
                known = ", ".join(offered) or "none"
                raise PermissionProblem(
                    f"{option} {name!r}: there is no such tool{suggestion(name, offered) or '.'} "
                    f"The tools are: {known}"
                )
    called: list[str] = []
    undecided: list[str] = []
    for name, tool in offered.items():
        if name in skip:
            continue
        may_be_called = call_all or name in call or (trusts_hints and is_read_only(tool))
        (called if may_be_called else undecided).append(name)
    return Permissions(
        called=tuple(called),
        skipped=tuple(name for name in offered if name in skip),
        undecided=tuple(undecided),
        trusts_hints=trusts_hints,
    )
