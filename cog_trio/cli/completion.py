"""``cog-trio completion``: the script that makes a shell complete our commands and flags. It is click's own."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from cog_trio.cli import options

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_COG_TRIO_COMPLETE"  # by which click knows that a shell is asking


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the script that makes SHELL complete cog-trio.

    \b
    bash:  eval "$(cog-trio completion bash)"              in ~/.bashrc
    zsh:   eval "$(cog-trio completion zsh)"               in ~/.zshrc
    fish:  cog-trio completion fish | source               in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    context = click.get_current_context().find_root()
    click.echo(kind(context.command, {}, options.NAME, VARIABLE).source())
    return 0
