"""The list of commands, and how their errors are reported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from amplifier._internal.facade import __version__
from amplifier.cli._exit_codes import CommandError, Exit

from .shared_options import GlobalOptions, LazyGroup, debug_option

SECOND_NAME: Final = "amplifier-kernel"
"""Installed beside ``amplifier``, which the published command line installs as well."""

_SUMMARIES = {
    "run": "Ask an agent; without PROMPT at a terminal, chat with it.",
    "session": "Look at, trace, resume, fork and delete the sessions that were kept.",
    "acp": "Serve an editor over standard input and output.",
    "serve": "Serve an agent over HTTP: a page for people, the OpenAI chat completions, AG-UI and a session API.",
    "ui": "Open a browser for the agent of `amplifier run`: chat, stored sessions, their traces, tools and conformance reports.",
    "validate": "Check a module, the tools of an MCP server, or Python functions and tools, as they are.",
    "module": "List and describe installed modules, check one, create one.",
    "plan": "Check and print mount plans.",
    "turns": "Look at the turns of an engine, and stop, resume and release them, also on a page; run a worker.",
    "mcp": "Add MCP servers, see what they offer, call their tools, use those of other hosts, serve an agent.",
    "models": "List the models of every provider that can be used now, or those with SEARCH in their name.",
    "keys": "Keep keys in the keyring of this system, where every agent finds them; without a command, list their names.",
    "config": "Show what is configured, and where each value comes from.",
    "permissions": "Show, or revoke, what was allowed for good in the project of this folder.",
    "doctor": "Check Python, backends, extras, modules, keys, the command itself, the sandbox, the state folder and what is running.",
}

_FILES = {"acp": "serve", "ui": "serve", "keys": "models", "permissions": "config"}
"""Where a command is; in a file of its own name if it is not here."""


class _App(LazyGroup):
    def invoke(self, ctx: click.Context) -> object:
        """Run the requested command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would make it the exit code of a failure
            raise CommandError(
                "the reader of the output has gone", exit_code=Exit.BROKEN_PIPE
            ) from error


@click.group(
    cls=_App,
    lazy={name: f"{_FILES.get(name, name)}:{name}" for name in _SUMMARIES},
    summaries=_SUMMARIES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(
    __version__
)  # click would read it from the metadata, which takes longer than all else
@debug_option
def app() -> None:
    """Run and examine Amplifier agents.

    \b
    amplifier run "how many Python files are there?"     one question
    amplifier run                                        a chat
    amplifier doctor                                     is everything in place?
    """  # noqa: D301  # click's mark for "leave these lines as they are" is the character, not its spelling


@app.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion code for SHELL, for the name this command was called by.

    \b
    bash   eval "$(amplifier completion bash)"      in ~/.bashrc
    zsh    eval "$(amplifier completion zsh)"       in ~/.zshrc
    fish   amplifier completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301  # click's mark for "leave these lines as they are" is the character, not its spelling
    kind = get_completion_class(shell)
    assert kind is not None  # click knows these three
    root = context.find_root()
    name = (root.info_name or "amplifier").rpartition(" ")[2]
    made = kind(root.command, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE")
    # Not source(), which first looks for a bash to ask its version.
    click.echo(made.source_template % made.source_vars())


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return the exit code."""
    called = Path(sys.argv[0] if sys.argv else "")
    # As it was typed: another distribution may own the first name.
    name = called.stem if called.stem == SECOND_NAME else "amplifier"
    if (called.parent.name, called.name) == ("amplifier", "__main__.py"):
        name = "python -m amplifier"
    global_options = GlobalOptions(debug=False)
    try:
        # Shells complete commands, and `python -m amplifier` is none.
        variable = f"_{name.rpartition(' ')[2].replace('-', '_').upper()}_COMPLETE"
        ended = app.main(
            args=arguments,
            prog_name=name,
            complete_var=variable,
            standalone_mode=False,
            obj=global_options,
        )
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return Exit.INTERRUPTED
    except SystemExit as end:  # completion ends this way
        return end.code if isinstance(end.code, int) else Exit.OK
    except Exception as error:  # noqa: BLE001  # the last place before the shell: one message, no traceback
        return _report_error(error, debug=global_options.debug)
    return ended if isinstance(ended, int) else Exit.OK


def _report_error(error: Exception, *, debug: bool) -> int:
    from amplifier.cli._error_messages import (  # noqa: PLC0415  # only needed after a failure
        error_message,
        exit_code_of,
        traceback_text,
    )
    from amplifier.cli.terminal.output import StandardStreams  # noqa: PLC0415  # the same

    code = exit_code_of(error)
    StandardStreams.discard_unwritable()
    if code == Exit.BROKEN_PIPE:
        return code
    if debug:
        print(traceback_text(error), file=sys.stderr)
    message = error_message(error).replace(
        "\n", "\n  "
    )  # as in a notice: only our own lines begin at the margin
    print(f"amplifier: {message}", file=sys.stderr)
    return code
