"""``amplifier run``: one question, or a chat. ``session resume`` shares most of it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from amplifier._internal.json import visible_text
from amplifier.cli._exit_codes import CommandError
from amplifier.cli._sessions import SessionStore
from amplifier.cli.agent.agent_run import RunRequest, print_error_json, run_agent
from amplifier.cli.agent.configuration import Value, read_configuration
from amplifier.cli.agent.plan_files import read_servers
from amplifier.cli.terminal.output import is_terminal
from amplifier.loading.loader import installed_ids
from amplifier.modules.hooks.approval import MODES
from amplifier.plan import names_provider, validate_session_id
from amplifier.store import INTERRUPTED, SessionRecord

from .shared_options import (
    PLAN_FILE,
    Decorator,
    GlobalOptions,
    add_options,
    agent_options,
    complete_session,
    open_store,
    plan_option,
)

_MAX_PROMPT_BYTES = 16 * 1024 * 1024

_NEW_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False)
_JSON = "json prints one object at the end; json-trace adds every tool call."
_COST = "End the turn before its model calls, and those of its agents, cost more than this."
_TOKENS = (
    "End the turn before its model calls, and those of its agents, take more tokens than this."
)
_CHANGES = "Continue an interrupted turn even if the plan has changed."
_INSTRUCTIONS = (
    "Give the model AGENTS.md and CLAUDE.md of the folder and its parents, and the skills, or not."
)
_REPLAY = "Replay the model's answers from a file of --record, without a model."
_MODE = (
    "edits: edit files without a question; plan: change nothing; "
    "full: also run commands in the sandbox."
)
_PLAIN = (
    "Write plain text line by line, as for a screen reader: nothing rendered, redrawn or coloured."
)

run_options: Decorator = add_options(
    plan_option,
    agent_options,
    click.option(
        "--mcp",
        "servers",
        type=PLAN_FILE,
        metavar="FILE",
        help="Also use the MCP servers of this file (mcpServers).",
    ),
    click.option("-C", "--directory", type=_FOLDER, help="Work in this directory."),
    click.option(
        "--output-format",
        type=click.Choice(["text", "json", "json-trace"]),
        default="text",
        help=_JSON,
    ),
    click.option(
        "--record", type=_NEW_FILE, metavar="FILE", help="Record the model's answers in a new file."
    ),
    click.option("--replay", type=PLAN_FILE, metavar="FILE", help=_REPLAY),
    click.option("--max-cost", type=click.FloatRange(min=0), metavar="USD", help=_COST),
    click.option("--max-total-tokens", type=click.IntRange(min=0), metavar="N", help=_TOKENS),
    click.option("--accept-plan-changes", is_flag=True, help=_CHANGES),
    click.option(
        "--project-instructions/--no-project-instructions", default=True, help=_INSTRUCTIONS
    ),
    click.option("--mode", type=click.Choice(list(MODES)), default="ask", help=_MODE),
    click.option(
        "-y", "--yes", is_flag=True, help="Answer every question for permission with yes."
    ),
    click.option("-q", "--quiet", is_flag=True, help="Show the answer, warnings and errors only."),
    click.option("--plain", is_flag=True, envvar="AMPLIFIER_PLAIN", help=_PLAIN),
)
"""The options of commands that run an agent."""


prompt_argument: Decorator = click.argument("prompt", nargs=-1, metavar="[PROMPT]...")


@click.command()
@prompt_argument
@run_options
@click.option(
    "--resume",
    metavar="ID",
    shell_complete=complete_session,
    help="Continue a session; `last` is the latest one.",
)
@click.option("--session-id", metavar="ID", help="The id of the new session.")
@click.pass_obj
def run(
    global_options: GlobalOptions,
    /,
    prompt: tuple[str, ...],
    resume: str | None,
    session_id: str | None,
    **options: Any,
) -> int:
    """Ask an agent; without PROMPT at a terminal, chat with it.

    PROMPT `-`, or no PROMPT in a pipe, reads the prompt from standard input. The answer goes to
    standard output, everything else to standard error.

    Exit codes: 0 answered, 1 the turn failed, 2 it could not start, 3 its budget is used up, 130
    stopped with Ctrl-C, 143 and 129 ended by SIGTERM and SIGHUP, 141 the reader of the output has
    gone.
    """
    if resume is not None and session_id is not None:
        raise click.UsageError(
            "--resume continues a session, --session-id starts a new one; pass one of them"
        )
    return start_run(global_options, prompt=prompt, resume=resume, session_id=session_id, **options)


def start_run(
    global_options: GlobalOptions,
    *,
    prompt: tuple[str, ...],
    resume: str | None = None,
    session_id: str | None = None,
    **options: Any,
) -> int:
    """Run an agent with the options of `run_options`, and return the exit code.

    Args:
        global_options: The options before the command's name.
        prompt: The words of the prompt. Empty for a chat or standard input.
        resume: The session to resume, as the user names it.
        session_id: The user's id for the new session.
        options: The options of `run_options`.
    """
    try:
        text = " ".join(prompt) if prompt else None
        return run_agent(_run_request(global_options, text, resume, session_id, **options))
    # An invalid option produces a usage message in every output format.
    except click.ClickException:
        raise
    except Exception as error:
        if options["output_format"] != "text":
            print_error_json(error, options["output_format"])
        raise


def _run_request(
    global_options: GlobalOptions,
    prompt: str | None,
    resume: str | None,
    session_id: str | None,
    /,
    **options: Any,
) -> RunRequest:
    options |= _recordings(options)
    store = open_store(writable=True)
    resumed = None if resume is None else store.find(resume)
    if resumed is not None and store.is_open(resumed.session_id):
        holder = store.holder(resumed.session_id)
        raise CommandError(
            f"session {resumed.session_id!r} is open in another process{holder}; "
            f"end that one first, or continue a copy: amplifier session fork {resumed.session_id}"
        )
    directory: str | None = options.pop("directory")
    plan: Path | None = options.pop("plan")
    # Without a prompt, an interrupted turn continues. A prompt starts a new one.
    was_interrupted = resumed is not None and resumed.status == INTERRUPTED and prompt is None
    command = "amplifier run"
    if resumed is not None:
        command = f"amplifier session resume {resumed.session_id}"
    text = _prompt(prompt, options["output_format"], command, optional=was_interrupted)
    goes_on = was_interrupted and text is None
    if resumed is not None:
        if plan is None and resumed.plan is not None:
            plan = Path(resumed.plan)
            if not plan.is_file():
                raise CommandError(
                    f"the session was started with the plan {plan}, which no longer exists; "
                    "give --plan"
                )
        # A plan file chooses the provider.
        if resumed.plan is None:
            is_named = options["model"] is not None and names_provider(
                options["model"], installed_ids().__contains__
            )
            options["provider"] = options["provider"] or (None if is_named else resumed.provider)
        options["model"] = options["model"] or resumed.model
    # Resolve it before the directory changes.
    plan = None if plan is None else plan.absolute()
    servers: Path | None = options.pop("servers")
    servers = None if servers is None else servers.absolute()
    mcp_config = {} if servers is None else read_servers(servers, expand=False)
    added = mcp_config.get("servers", mcp_config.get("mcpServers", {}))
    if servers is not None and plan is not None:
        raise click.UsageError(
            "--mcp adds servers to the default plan; with --plan, name them in the plan"
        )
    _change_directory(directory, resumed)
    configuration = read_configuration(Path.cwd())
    if servers is not None:
        # A file without servers must not get the configured ones.
        configuration.values["mcpServers"] = Value({}, str(servers))
    configuration.values.update(
        {f"mcpServers.{name}": Value(server, str(servers)) for name, server in added.items()}
    )
    return RunRequest(
        store=store,
        prompt=text,
        goes_on=goes_on,
        plan=plan,
        resumed=resumed,
        session_id=_new_id(store, session_id) if resumed is None else resumed.session_id,
        debug=global_options.debug,
        configuration=configuration,
        **options,
    )


def _recordings(options: dict[str, Any]) -> dict[str, Path | None]:
    """Return the files of --record and --replay, before the directory changes."""
    record, replay = options["record"], options["replay"]
    if record is not None and replay is not None:
        raise click.UsageError("--record calls the model, --replay does not; pass one of them")
    if replay is not None and options["provider"] is not None:
        raise click.UsageError("--replay answers for the recorded providers; leave out -p")
    if record is not None and record.exists():
        raise CommandError(
            f"{record} exists; remove it to record again, "
            f"or replay it: amplifier run --replay {record}"
        )
    return {
        name: None if path is None else path.absolute()
        for name, path in (("record", record), ("replay", replay))
    }


def _prompt(
    argument: str | None, output_format: str, command: str, *, optional: bool
) -> str | None:
    """Return the prompt, or None for a chat or for an optional prompt that is missing."""
    if argument is None and is_terminal(sys.stdin):
        if not optional and output_format != "text":
            raise click.UsageError(
                f"--output-format {output_format} needs a prompt; a chat has no single result"
            )
        if not optional and not sys.stderr.isatty():
            raise click.UsageError(
                "a chat needs a terminal, and standard error is not one; give a prompt"
            )
        return None
    if argument is None or argument == "-":
        data = sys.stdin.buffer.read(_MAX_PROMPT_BYTES + 1)
    else:
        # In an argument that isn't UTF-8, surrogates stand for the invalid bytes.
        data = argument.encode(errors="surrogateescape")
    if len(data) > _MAX_PROMPT_BYTES:
        raise CommandError(f"the prompt is longer than {_MAX_PROMPT_BYTES // 2**20} MiB")
    if not data.strip():
        if optional and argument is None:
            return None
        raise CommandError(f'the prompt is empty; pass one: {command} "…"')
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"the prompt is not UTF-8: byte {error.start + 1} is wrong") from None


def _new_id(store: SessionStore, wanted: str | None) -> str:
    if wanted is None:
        return store.new_id()
    if store.exists(validate_session_id(wanted)):
        raise CommandError(
            f"session {wanted!r} exists already; continue it: amplifier run --resume {wanted}"
        )
    return wanted


# ── resuming a session ────────────────────────────────────────────────────────────────────────


def _change_directory(directory: str | None, resumed: SessionRecord | None) -> None:
    """Change to the user's directory, by default to that of the session."""
    recorded = None if resumed is None else resumed.directory
    here: str | None = None
    # The working directory may have been deleted.
    with suppress(FileNotFoundError):
        here = str(Path.cwd())
    if here is None and directory is None and recorded is None:
        raise CommandError(
            "the working directory no longer exists; change to another one or give -C DIRECTORY"
        )
    if directory is None and recorded is not None and recorded != here:
        if not Path(recorded).is_dir():
            raise CommandError(
                f"the session was started in {recorded}, which no longer exists; give -C DIRECTORY"
            )
        shown = visible_text(recorded, multiline=False)
        print(f"Working in {shown}, where this session was begun.", file=sys.stderr)
    if directory or recorded:
        os.chdir(directory or recorded or ".")
