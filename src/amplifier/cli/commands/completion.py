"""``amplifier completion``: the shell's own code for completing our commands, options and ids."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]


@click.command()
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
