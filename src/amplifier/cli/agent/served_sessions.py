"""Sessions for an editor or for clients over HTTP, and the server of an editor."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import attrs

from amplifier.cli._exit_codes import Exit
from amplifier.cli._sessions import SessionStore
from amplifier.cli.terminal.display import Display, install_log_handler
from amplifier.cli.terminal.output import StandardStreams
from amplifier.errors import AmplifierError, SessionBusyError
from amplifier.kernel import AmplifierSession
from amplifier.loading import ModuleLoader
from amplifier.servers import SessionRequest
from amplifier.servers.acp import serve, taken_standard_streams
from amplifier.store import SessionRecord
from amplifier.store.sessions import now

from .approvals import NoOneToAsk
from .configuration import read_configuration
from .default_plan import AgentPlan, build_plan, in_memory, with_storage_paths, with_traces
from .plan_files import MCP_MODULE, change_module
from .project_instructions import own_commands
from .signals import run_observed, until_signal
from .terminal_agent import check_failures


@attrs.frozen(kw_only=True)
class ServedSessions:
    """Makes and checks the sessions of one plan, for servers.

    Attributes:
        store: The stored sessions.
        display: Shows warnings and hooks' messages.
        available: Module ids that can be loaded.
        plan: The user's own plan file, or None for the default plan.
        provider: The provider as the user wrote it, or None for the default one.
        model: The model as the user wrote it, or None for the default one.
        backend: The event loop, for the records.
        otel: The collector for traces of the sessions.
    """

    store: SessionStore
    display: Display
    available: frozenset[str]
    plan: Path | None = None
    provider: str | None = None
    model: str | None = None
    backend: str = "asyncio"
    otel: str | None = None

    @classmethod
    async def prepare(cls, store: SessionStore, display: Display, **options: Any) -> ServedSessions:
        """Find the installed modules, and check the plan before the first client connects.

        Raises:
            CommandError: The plan can't be read, or the provider is unknown.
            PlanError: The plan is invalid.
        """
        available = frozenset(info.id for info in await ModuleLoader().discover())
        sessions = cls(store=store, display=display, available=available, **options)
        built = sessions._agent_plan(Path.cwd())
        for note in built.notes:
            display.notice(note, "warning")
        return sessions

    @property
    def has_mcp(self) -> bool:
        """True if sessions can use a client's MCP servers."""
        return MCP_MODULE in self.available

    def _agent_plan(self, directory: Path) -> AgentPlan:
        configuration = read_configuration(directory) if self.plan is None else None
        built = build_plan(
            self.available,
            file=self.plan,
            provider=self.provider,
            model=self.model,
            directory=directory,
            configuration=configuration,
        )
        return built if self.otel is None else attrs.evolve(built, plan=with_traces(built.plan))

    def make(self, wanted: SessionRequest) -> AmplifierSession:
        """Return an unopened session.

        Raises:
            CommandError: The plan is no longer readable.
            SessionBusyError: The session is open in another process.
        """
        directory, session_id = wanted.directory or Path.cwd(), wanted.session_id
        if session_id is not None and wanted.is_resumed and self.store.is_open(session_id):
            raise SessionBusyError(
                f"session {session_id!r} is open in another process; end that one first"
            )
        agent_plan = self._agent_plan(directory)
        if session_id is None:
            plan = in_memory(agent_plan.plan)
        else:
            plan = with_storage_paths(
                _with_servers(agent_plan.plan, wanted.servers), sessions=self.store.root
            )
        session = AmplifierSession(
            plan,
            session_id=session_id,
            approval_system=wanted.approvals or NoOneToAsk(self.display),
            display_system=self.display,
            is_resumed=wanted.is_resumed,
        )
        # Register the folder before the session opens, because modules may start programs there on
        # mount.
        session.coordinator.register_capability("session.working_dir", str(directory))
        if session_id is not None:
            # Another process may have used the session since an earlier opening.
            self.store.begun.pop(session_id, None)
            new = SessionRecord(session_id=session_id, created=now(), directory=str(directory))
            known = self.store.record(session_id) if wanted.is_resumed else new
            record = agent_plan.describe(known, file=self.plan, backend=self.backend)
            self.store.begun[session_id] = record
        return session

    def check(self, session: AmplifierSession) -> None:
        """Check that a session has a provider and all of its modules.

        Raises:
            AmplifierError: The session can't be used.
        """
        for warning in check_failures(session):
            self.display.notice(warning, "warning")
        if not session.coordinator.get("providers"):
            record = self.store.begun.get(session.session_id)
            provider = None if record is None else record.provider
            name = provider or self.provider or "the plan's provider"
            raise AmplifierError(
                f"{name} is not available; "
                "`amplifier doctor` shows which keys and packages are missing"
            )


def _with_servers(plan: dict[str, Any], servers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the plan with a client's MCP servers.

    The plan's servers take precedence over servers with the same name.
    """

    def with_more(entry: dict[str, Any]) -> dict[str, Any]:
        config = dict(entry["config"])
        own = config.pop("servers", config.pop("mcpServers", {}))
        merged = {**servers, **(own if isinstance(own, dict) else {})}
        return {**entry, "config": {**config, "servers": merged}}

    if not servers:
        return plan
    return change_module(plan, MCP_MODULE, with_more, add=("tools", {"module": MCP_MODULE}))


def serve_editor(
    store: SessionStore, plan: Path | None, *, backend: str, debug: bool, **options: Any
) -> int:
    """Serve an editor over standard input and output until it disconnects or a signal arrives.

    Args:
        store: The stored sessions.
        plan: The user's own plan file, or None for the default plan.
        backend: The event loop.
        debug: True shows tracebacks and the library's log.
        options: The other options of the command.

    Returns:
        The exit code.
    """
    with taken_standard_streams() as protocol:
        # From here on, standard output is redirected to standard error.
        display = Display(StandardStreams(), "text", quiet=True)
        install_log_handler(display, debug=debug)
        lost: OSError | None = None

        async def serve_client() -> None:
            nonlocal lost
            sessions = await ServedSessions.prepare(
                store, display, backend=backend, plan=plan, **options
            )
            lost = await serve(
                protocol,
                sessions.make,
                storage=store,
                check=sessions.check,
                commands=partial(own_commands, notice=partial(display.notice, level="warning")),
                has_mcp=sessions.has_mcp,
            )

        async def main() -> int:
            ended_by = await until_signal(serve_client)
            if ended_by is not None:
                return 128 + ended_by
            return Exit.OK if lost is None else Exit.BROKEN_PIPE

        return run_observed(main, "acp", display, backend=backend, otel=options["otel"])
