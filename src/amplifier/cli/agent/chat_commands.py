"""The commands of the chat, which begin with a slash, commands of one's own, and the files that a message mentions."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from amplifier._json import sanitize_text, visible_text
from amplifier._regular_file import read_file
from amplifier._spelling import nearest
from amplifier.cli.core.error_messages import error_message
from amplifier.cli.core.exit_codes import CommandError
from amplifier.cli.sessions.home_folder import config_folder
from amplifier.cli.terminal.output import Output
from amplifier.errors import AmplifierError
from amplifier.live._edits import diff_style
from amplifier.models import file
from amplifier.modules.hooks.approval import MODES
from amplifier.servers._sessions import expanded, summary
from amplifier.store import INTERRUPTED
from amplifier.tracing import totals, write_summary
from amplifier.tracing._sessions import read_trace, write_conversation

from .project_instructions import project_root
from .terminal_agent import TerminalAgent, compaction_message

LEAVING = ("exit", "quit", "q")
_MENTION = re.compile(r'(?<!\S)@(?:"([^"]+)"|(\S+))')
_SECONDS_TO_LIST = 20.0
_LONGEST_TEXT = 200_000
_MOST_BYTES = 5_000_000


class ChatCommands:
    """What can be typed after a slash.

    Args:
        agent: The session of the chat.
        terminal: Where the chat is.

    Attributes:
        reopen: Set by a command after which the chat goes on with another session: what changes of the request.
    """

    def __init__(self, agent: TerminalAgent, terminal: Output) -> None:
        self._agent = agent
        self._show = agent.display.line
        self._terminal = terminal
        self.reopen: dict[str, Any] | None = None
        self._commands: dict[str, tuple[str, Callable[[str], Awaitable[None]]]] = {
            "help": ("this list", self._help),
            "model": ("[PROVIDER:]MODEL: go on with another model; alone: what there is", self._model),
            "mode": ("[ask|edits|plan|full]: what is done without a question (also Shift-Tab)", self._mode),
            "compact": ("replace older messages, in what the model is shown, by a summary", self._compact),
            "uncompact": ("undo the latest compaction of what the model is shown", self._uncompact),
            "clear": ("forget the conversation, on disk too", self._clear),
            "undo": ("take back what the latest turn changed, files and conversation", self._undo),
            "redo": ("do again what was taken back", lambda _: self._undo("redo")),
            "diff": ("what was edited in this chat", self._diff),
            "cost": ("what the session has cost", self._cost),
            "status": ("the session, its model and its files", self._status),
            "tools": ("the tools the agent has", self._tools),
            "tasks": ("the sessions of delegated tasks", self._tasks),
            "mcp": ("the MCP servers", self._mcp),
            "resume": ("[ID]: go on with another session; alone: which there are", self._resume),
            "export": ("[FILE]: write the conversation as Markdown, or HTML", self._export),
        }
        self._own = own_commands(Path.cwd(), taken=(*self._commands, *LEAVING), notice=agent.display.notice)

    @property
    def summaries(self) -> dict[str, str]:
        """Each command in a few words."""
        own = {name: summary(text) for name, text in self._own.items()}
        return {**own, **{name: summary for name, (summary, _) in self._commands.items()}}

    async def run(self, line: str) -> str | None:
        """Execute a command; returns the message that a command of one's own stands for."""
        name, _, argument = line.partition(" ")
        found = self._commands.get({"?": "help"}.get(name, name))
        if found is None and name in self._own:
            return expanded(self._own[name], argument)
        if found is None:
            near = nearest(name, [*self.summaries, "exit"])
            advice = f"did you mean /{near}?" if near else "/help lists them"
            shown = visible_text(name, multiline=False)
            self._agent.display.notice(f"there is no command /{shown}; {advice} (// sends a slash)", "warning")
            return None
        try:
            await found[1](argument.strip())
        except (AmplifierError, CommandError, OSError) as error:
            self._agent.display.notice(error_message(error), "error")
        return None

    def _list(self, rows: Sequence[tuple[str, object]], nothing: str) -> None:
        """Rows of two columns, each in one line of the terminal."""
        first = max((len(name) for name, _ in rows), default=0)
        for name, text in rows or [(nothing, "")]:
            shown = visible_text(f"  {name:{first}} {' '.join(str(text).split())}", multiline=False)
            width = self._terminal.width() - 1
            self._show(shown if len(shown) <= width else shown[: width - 1] + self._terminal.glyph("…", "."))

    async def _help(self, _: str) -> None:
        self._list([(f"/{name}", text) for name, text in {**self.summaries, "exit": "leave (also Ctrl-D)"}.items()], "")
        key = "Alt-Enter" if self._terminal.can_move_cursor else "A backslash at the end of a line"
        self._show(f"  {key} begins another line of the same message.")
        self._show('  @FILE attaches a file, also @"A FILE"; // sends a slash.')
        self._show("  A line that you type while a turn runs is read by the agent at its next step.")
        if self._terminal.can_move_cursor:
            self._show("  Tab completes, Ctrl-R searches, Ctrl-X Ctrl-E opens your editor.")

    async def _model(self, argument: str) -> None:
        agent = self._agent
        if not argument:
            self._list([("now", agent.latest.model or agent.record.model or f"chosen by {agent.record.provider}")], "")
            with anyio.move_on_after(_SECONDS_TO_LIST):
                for each in agent.session.coordinator.get("providers").values():
                    models = await each.list_models()
                    self._list([(model.id, f"{model.context_window:,} tokens") for model in models], "")
            return
        if agent.turns and not agent.store.has_messages(agent.session.session_id):
            raise CommandError("the plan of this chat keeps no conversation, so it cannot go on with another model")
        provider, colon, model = argument.rpartition(":") if argument.count(":") == 1 else ("", "", argument)
        self.reopen = {"model": model, **({"provider": provider} if colon else {})}

    async def _mode(self, argument: str) -> None:
        now = f"mode {self._agent.permissions.mode}: {MODES[self._agent.permissions.mode][0]}"
        self._show(f"  {self._agent.permissions.switch(argument) if argument else now}")

    async def _compact(self, _: str) -> None:
        compact = getattr(self._agent.session.coordinator.get("context"), "compact", None)
        told = None if compact is None else await compact()
        self._agent.display.notice(
            compaction_message(told) if told else "There is too little to compact; the conversation stays as it is."
        )

    async def _uncompact(self, _: str) -> None:
        undo = getattr(self._agent.session.coordinator.get("context"), "uncompact", None)
        is_undone = undo is not None and await undo()
        self._show(f"  {'The latest compaction is undone.' if is_undone else 'There is no compaction to undo.'}")

    async def _clear(self, _: str) -> None:
        context = self._agent.session.coordinator.get("context")
        if context is not None:
            await context.clear()
        self._agent.display.notice("The conversation is forgotten.")

    async def _undo(self, argument: str) -> None:
        context = self._agent.session.coordinator.get("context")
        for line in await self._agent.checkpoints.undo_open(context, redo=argument == "redo"):
            self._show(f"  {line}")

    async def _diff(self, _: str) -> None:
        lines = await anyio.to_thread.run_sync(self._agent.display.edits.changes)
        for line in lines or ["nothing was edited with write_file or edit_file"]:
            self._show(f"  {self._terminal.styled(line, diff_style(line))}")

    async def _cost(self, _: str) -> None:
        trace = await anyio.to_thread.run_sync(read_trace, self._agent.store, self._agent.session.session_id)
        total, turns, tokens = totals(trace), self._agent.turns, self._agent.tokens
        chat = f"{turns} turns and {tokens:,} tokens in this chat; no event log"
        self._show(f"  {write_summary(total) if total.turns else chat}")
        statistics = getattr(self._agent.session.coordinator.get("context"), "statistics", None)
        error = getattr(statistics() if callable(statistics) else None, "error", None)
        if isinstance(error, float):
            self._show(f"  the tokens of the latest request were estimated {error:+.1%} off the provider's count")

    async def _tools(self, _: str) -> None:
        tools = self._agent.session.coordinator.get("tools") or {}
        texts = {name: str(getattr(tool, "description", "")).strip() for name, tool in tools.items()}
        self._list([(name, text.partition("\n")[0]) for name, text in texts.items()], "no tools are mounted")

    async def _tasks(self, _: str) -> None:
        store = self._agent.store
        children = [store.record(name) for name in store.descendants(self._agent.session.session_id)]
        rows = [(each.session_id, f"{each.status or 'ended'}  {each.title or ''}") for each in children]
        self._list(rows, "no task was delegated")

    async def _mcp(self, _: str) -> None:
        status = self._agent.session.coordinator.get_capability("mcp.status")
        found = status() if status else ()
        rows = [(each["server"], each["error"] or f"{len(each['tools'])} tools") for each in found]
        self._list(rows, "no MCP servers; add one with: amplifier mcp add")

    async def _resume(self, argument: str) -> None:
        store, here = self._agent.store, str(Path.cwd())
        if not argument:
            found = [(each.session_id, each.title or "") for each in store.records() if each.directory == here][:10]
            self._list(found, "there is no other session of this folder")
            return
        record = store.find(argument)
        if record.directory not in (None, here) or store.is_open(record.session_id):
            raise CommandError(
                f"it is open or of another folder ({record.directory}): amplifier run --resume {record.session_id}"
            )
        plan = None if record.plan is None else Path(record.plan)
        changes = {"provider": record.provider if plan is None else None, "model": record.model, "plan": plan}
        self.reopen = {
            "session_id": record.session_id,
            "resumed": record,
            "goes_on": record.status == INTERRUPTED,
            **changes,
        }

    async def _export(self, argument: str) -> None:
        title, path = self._agent.record.title or self._agent.session.session_id, Path(argument or "conversation.md")
        written = write_conversation(title, await self.messages(), page=path.suffix == ".html")
        async with await anyio.open_file(path, "x", encoding="utf-8", errors="backslashreplace") as new:
            await new.write(written)
        self._show(f"  {visible_text(str(path), multiline=False)}")

    async def messages(self) -> list[dict[str, Any]]:
        """The conversation."""
        context = self._agent.session.coordinator.get("context")
        return [] if context is None else await context.get_messages()

    async def _status(self, _: str) -> None:
        agent = self._agent
        facts = {
            "session": agent.session.session_id,
            "provider": agent.record.provider,
            "model": agent.latest.model or agent.record.model,
            "directory": agent.record.directory,
            "messages": str(len(await self.messages())),
            "turns": f"{agent.turns} in this chat, {agent.tokens} tokens",
            **agent.files(),
        }
        for name, value in facts.items():
            if value is not None:
                self._show(f"  {name:10} {visible_text(value, multiline=False)}")


def own_commands(
    directory: Path, *, taken: Sequence[str] = (), notice: Callable[[str], None] = lambda text: None
) -> dict[str, str]:
    """The texts of ``commands/NAME.md`` of the user, then of ``.amplifier`` in the project; text for the model and nothing else."""
    found: dict[str, str] = {}
    for folder in (config_folder(), project_root(directory) / ".amplifier"):
        for path in sorted((folder / "commands").glob("*.md")):
            try:
                text = sanitize_text(read_file(path, most=_LONGEST_TEXT).decode()).strip()
                if path.stem in taken or not re.fullmatch(r"[\w-]+", path.stem):
                    raise ValueError("the chat has a command of that name" if path.stem in taken else "not a name")
            except (OSError, ValueError) as error:
                notice(f"{path} is not used: {error}")
                continue
            if text:
                found.setdefault(path.stem, text)
    return found


def mentioned_files(message: str, notice: Callable[[str], None]) -> list[Any]:
    """The files of this folder that a message mentions as ``@PATH`` or ``@"PATH"``, as parts of a prompt; each is announced."""
    blocks: list[Any] = []
    for word in dict.fromkeys(quoted or plain for quoted, plain in _MENTION.findall(message)):
        path = Path(word if Path(word).is_file() else word.rstrip(".,;:!?)"))
        try:
            if not path.is_file():
                raise ValueError("it is a folder" if path.is_dir() else "there is no such file")
            if not path.resolve().is_relative_to(Path.cwd().resolve()):
                raise ValueError("it is outside of this folder")
            block = file(path, name=os.fspath(path), max_bytes=_MOST_BYTES)
            if len(getattr(block, "text", "")) > _LONGEST_TEXT:
                raise ValueError("it is too long; the agent can read parts of it")
        except (OSError, ValueError) as error:
            notice(f"not attached: {path}: {error}")
            continue
        blocks.append(block)
        notice(f"attached: {path}")
    return blocks
