"""The list of commands, and the report of their errors."""

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
"""Name of the same command, because the published command line also installs ``amplifier``."""

_SUMMARIES = {
    "run": "Ask an agent; without PROMPT at a terminal, chat with it.",
    "session": "Look at, trace, resume, fork and delete stored sessions.",
    "acp": "Serve an editor over standard input and output.",
    "serve": "Serve an agent over HTTP: a chat page, the OpenAI API, AG-UI and a session API.",
    "ui": "Open the chat page of the agent of `amplifier run` in a browser.",
    "validate": "Check a module, the tools of an MCP server, or Python functions and tools.",
    "module": "List and describe installed modules, check one, create one.",
    "plan": "Check and print mount plans.",
    "turns": "List, show, stop, resume and release the turns of an engine, or run a worker.",
    "mcp": "Add MCP servers, list and call their tools, import them, or serve an agent.",
    "models": "List the models of all usable providers, or those with SEARCH in their name.",
    "keys": "Keep keys in the keyring of this system; without a command, list their names.",
    "config": "Show the configuration, and where each value comes from.",
    "permissions": "Show, or revoke, the permanent permissions in the project of this folder.",
    "doctor": "Check the installation, and list running commands.",
}

_FILES = {"acp": "serve", "ui": "serve", "keys": "models", "permissions": "config"}
"""Files of commands, where they differ from the command's name."""


class _App(LazyGroup):
    def invoke(self, ctx: click.Context) -> object:
        """Run the requested command."""
        try:
            return super().invoke(ctx)
        # click would exit with the code for a failure.
        except BrokenPipeError as error:
            message = "the reader of the output has gone"
            raise CommandError(message, exit_code=Exit.BROKEN_PIPE) from error


@click.group(
    cls=_App,
    lazy={name: f"{_FILES.get(name, name)}:{name}" for name in _SUMMARIES},
    summaries=_SUMMARIES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Pass an explicit version, because reading the metadata takes longer than everything else.
@click.version_option(__version__)
@debug_option
def app() -> None:
    """Run and examine Amplifier agents.

    \b
    amplifier run "how many Python files are there?"     one question
    amplifier run                                        a chat
    amplifier doctor                                     a check of the installation
    """  # noqa: D301 - click needs the backspace character


@app.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion code for SHELL, for the name with which this command was called.

    \b
    bash   eval "$(amplifier completion bash)"      in ~/.bashrc
    zsh    eval "$(amplifier completion zsh)"       in ~/.zshrc
    fish   amplifier completion fish | source       in ~/.config/fish/config.fish
    """  # noqa: D301 - click needs the backspace character
    kind = get_completion_class(shell)
    assert kind is not None  # click has these three
    root = context.find_root()
    name = (root.info_name or "amplifier").rpartition(" ")[2]
    shell_completion = kind(root.command, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE")
    # Don't use source(), which first runs bash for its version.
    click.echo(shell_completion.source_template % shell_completion.source_vars())


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return the exit code."""
    called = Path(sys.argv[0] if sys.argv else "")
    # Use the typed name: another distribution may own the first name.
    name = called.stem if called.stem == SECOND_NAME else "amplifier"
    if (called.parent.name, called.name) == ("amplifier", "__main__.py"):
        name = "python -m amplifier"
    global_options = GlobalOptions(debug=False)
    try:
        # Shells complete commands, and `python -m amplifier` isn't one.
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
    # Shell completion ends with this exception.
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else Exit.OK
    # Nothing outside handles errors, so print one message instead of a traceback.
    except Exception as error:  # noqa: BLE001
        return _report_error(error, debug=global_options.debug)
    return ended if isinstance(ended, int) else Exit.OK


def _report_error(error: Exception, *, debug: bool) -> int:
    # Only needed after a failure.
    from amplifier.cli._error_messages import (  # noqa: PLC0415
        error_message,
        exit_code_of,
        traceback_text,
    )
    from amplifier.cli.terminal.output import StandardStreams  # noqa: PLC0415

    code = exit_code_of(error)
    StandardStreams.discard_unwritable()
    if code == Exit.BROKEN_PIPE:
        return code
    if debug:
        print(traceback_text(error), file=sys.stderr)
    # Indent the text, so that no line of untrusted text looks like a message of the command.
    message = error_message(error).replace("\n", "\n  ")
    print(f"amplifier: {message}", file=sys.stderr)
    return code
