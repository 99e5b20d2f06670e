"""Recorded answers of models in tests: the plan of a session that records or replays.

The pytest fixture ``amplifier_cassette`` makes a `Cassette` for each test; `amplifier.modules.providers.replay` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from uuid import uuid4

from amplifier.plan import merge_plans

CassetteMode: TypeAlias = Literal["none", "once", "new"]
"""``none`` only replays; ``once`` records if the file is missing, else replays; ``new`` replays what is recorded and records the rest."""

_MODULE = "provider-replay"


class Cassette:
    """A file with recorded answers of one session and its children, or of several: the order of opening distinguishes them.

    All sessions whose plans it made belong together, side by side or one after the other; in a replay they have to be opened in the same
    order. Whether they are recorded is decided with the first plan.

    Args:
        path: The file.
        mode: What may be recorded.
        placeholders: Names, each with the text that it stands for in the file: ``{"<directory>": str(tmp_path)}``.
        ignore: Regular expressions; what they match in a request is not compared.

    Raises:
        ValueError: There is no such mode.
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
            raise ValueError(
                f"expected one of {', '.join(map(repr, get_args(CassetteMode)))} as mode, got {mode!r}"
            )
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
        """Whether the providers of the plan may be asked; if not, the plan needs neither them nor their keys."""
        return (
            self._is_recording
            or self.mode == "new"
            or (self.mode == "once" and not self.path.exists())
        )

    def plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """The plan of a session that records or replays.

        Without `asks_providers` the providers of the plan are left out, and those of its agents as well.

        Args:
            plan: A mount plan; it is not changed.
        """
        self._is_recording = self.asks_providers
        made = merge_plans(plan, {})
        agents = made.get("agents")
        own = (
            [agent for agent in agents.values() if isinstance(agent, dict)]
            if isinstance(agents, dict)
            else []
        )
        for part in (made, *(agent for agent in own if "providers" in agent)):
            given = part.get("providers")
            kept = list(given) if self.asks_providers and isinstance(given, list) else []
            part["providers"] = [*kept, self._entry()]
        return made

    def _entry(self) -> dict[str, Any]:
        config: dict[str, Any] = {"cassette": str(self.path), "mode": self.mode, "run": self._run}
        if self.placeholders:
            config["placeholders"] = dict(self.placeholders)
        if self.ignore:
            config["ignore"] = list(self.ignore)
        return {"module": _MODULE, "source": "builtin", "config": config}
