"""The options of a persistent context, and where its folder is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from amplifier.store import check_session_id

from ..._shared.configuration import choice, directory_name, flag, option, read_options
from ..._shared.session_files import default_sessions_directory
from .. import ContextOptions

ResumePolicy: TypeAlias = Literal["keep_file", "replace"]


@attrs.frozen(kw_only=True)
class PersistentOptions(ContextOptions):
    """Where the conversation is kept and how much of it a request may hold.

    Attributes:
        folder: The conversation's own folder, created if it does not exist.
        session_id: The session of the conversation.
        resume_policy: What `set_messages` does after the conversation was loaded from its file: ``"keep_file"`` ignores
            it, because the file is the fuller record; ``"replace"`` obeys.
        durable_turns: Keep a journal of tool calls, so that a turn that a crash cuts off can be resumed where it was:
            calls without a result stay open when the conversation is loaded, until the turn is resumed or the next begins.
    """

    folder: Path = option(directory_name, key="path", default=attrs.Factory(default_sessions_directory))
    session_id: str
    resume_policy: ResumePolicy = option(choice("keep_file", "replace"), default="keep_file")
    durable_turns: bool = option(flag, default=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_session_id(self.session_id)


def read_persistent_options(session_id: Any, config: Mapping[str, Any] | None) -> PersistentOptions:
    """Read the configuration of a session's context.

    Raises:
        PlanError: The configuration is wrong, or the session id cannot name a folder; it lists all problems.
    """
    options = read_options(PersistentOptions, "context-persistent", config, session_id=session_id)
    return attrs.evolve(options, folder=options.folder.absolute() / session_id)
