"""``cog-trio completion``: the script that makes a shell complete our commands, flags and inputs.

It is click's own, but for bash, which cuts words at ``=``, ``@`` and ``:``: ``-i image=@ca`` would be four words.
So the whole line is asked for, and the answer leaves out what stands before the last cut.
"""

from __future__ import annotations

import os
from typing import Any, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from cog_trio.cli import options

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_COG_TRIO_COMPLETE"  # by which click knows that a shell is asking; named in cli/__init__.py too
CUTS: Final = "=@:"  # of COMP_WORDBREAKS, those that stand inside of our words
CLICKS: Final = "COMP_CWORD=$COMP_CWORD %(complete_var)s"  # in click's script
OURS: Final = 'COMP_CWORD=$COMP_CWORD COMP_LINE="$COMP_LINE" COMP_POINT=$COMP_POINT %(complete_var)s'
ADDS: Final = "            COMPREPLY+=($value)\n"
STAYS: Final = "            [[ $value == *= || $value == */ || $value == *@ ]] && compopt -o nospace\n"


class BashInputs(BashComplete):
    """click's completion for bash, with whole words."""

    source_template = BashComplete.source_template.replace(CLICKS, OURS).replace(ADDS, ADDS + STAYS)

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get("COMP_LINE")
        if line is None:  # a script that an older release has printed
            return super().get_completion_args()
        line = line[: int(os.environ["COMP_POINT"])]
        words = split_arg_string(line)[1:]
        self._incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words, self._incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        known = max(self._incomplete.rfind(cut) for cut in CUTS) + 1 if self._incomplete else 0
        whole = item.type == "plain" and item.value.startswith(self._incomplete)
        return f"{item.type},{item.value[known:] if whole else item.value}"

    _incomplete = ""


def register() -> None:
    """Have click answer a shell by this."""
    add_completion_class(BashInputs)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the script that makes SHELL complete cog-trio.

    \b
    bash:  eval "$(cog-trio completion bash)"              in ~/.bashrc
    zsh:   eval "$(cog-trio completion zsh)"               in ~/.zshrc
    fish:  cog-trio completion fish | source               in ~/.config/fish/config.fish
    """
    register()
    kind = get_completion_class(shell)
    assert kind is not None
    context = click.get_current_context().find_root()
    click.echo(kind(context.command, {}, options.NAME, VARIABLE).source())
    return 0
