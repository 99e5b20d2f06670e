"""Recorded answers of models in tests: plans for sessions that record or replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from uuid import uuid4

from amplifier.plan import merge_plans

CassetteMode: TypeAlias = Literal["none", "once", "new"]
"""``none`` only replays. ``once`` records if the file is missing, and replays otherwise. ``new``
replays recorded answers and records the others."""

_MODULE = "provider-replay"


class Cassette:
    """A file with recorded answers of one or more sessions and their children.

    The sessions of one cassette belong together, whether they run side by side or one after
    another. They are distinguished by the order in which they are opened, so a replay has to open
    them in the same order. The first plan decides whether they are recorded.

    Args:
        path: The file.
        mode: Which answers may be recorded.
        placeholders: Names, each with the text that it replaces in the file:
            ``{"<directory>": str(tmp_path)}``.
        ignore: Regular expressions. Matching parts of a request aren't compared.

    Raises:
        ValueError: The mode is unknown.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        mode: CassetteMode = "none",
        placeholders: Mapping[str, str] | None = None,
        ignore: Sequence[str] = (),
    ) -> None:
        if mode not in get_args(CassetteMode):
            modes = ", ".join(map(repr, get_args(CassetteMode)))
            raise ValueError(f"expected one of {modes} as mode, got {mode!r}")
        self.path: Path = Path(path).absolute()
        self.mode = mode
        self.placeholders: dict[str, str] = dict(placeholders or {})
        self.ignore: list[str] = list(ignore)
        self._run = uuid4().hex
        self._is_recording = False

    def __repr__(self) -> str:
        state = "recorded" if self.path.exists() else "not recorded"
        return f"<Cassette {str(self.path)!r}, mode {self.mode}, {state}>"

    @property
    def asks_providers(self) -> bool:
        """True if sessions may call the plan's providers. If False, they don't need keys."""
        return (
            self._is_recording
            or self.mode == "new"
            or (self.mode == "once" and not self.path.exists())
        )

    def plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan of a session that records or replays.

        Without `asks_providers` it leaves out the providers of the plan and of its agents.

        Args:
            plan: A mount plan, which is not changed.
        """
        self._is_recording = self.asks_providers
        result = merge_plans(plan, {})
        parts = [result]
        if isinstance(agents := result.get("agents"), dict):
            overlays = [agent for agent in agents.values() if isinstance(agent, dict)]
            parts += [overlay for overlay in overlays if "providers" in overlay]
        for part in parts:
            providers = part.get("providers")
            kept = providers if self.asks_providers and isinstance(providers, list) else []
            part["providers"] = [*kept, self._entry()]
        return result

    def _entry(self) -> dict[str, Any]:
        config: dict[str, Any] = {"cassette": str(self.path), "mode": self.mode, "run": self._run}
        if self.placeholders:
            config["placeholders"] = dict(self.placeholders)
        if self.ignore:
            config["ignore"] = list(self.ignore)
        return {"module": _MODULE, "source": "builtin", "config": config}
