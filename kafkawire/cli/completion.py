"""`kafkawire completion bash|zsh|fish`: a script that completes commands and options.

The script has all names in it: a completion starts no process. Values of options are completed as
file names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kafkawire.cli.command import option_help
from kafkawire.cli.shared.options import OptionError, parse_choice
from kafkawire.cli.shared.output import fail

PROGRAM = "kafkawire"


@dataclass(frozen=True, slots=True)
class CommandNames:
    """Names to complete after a command: (name, help) of its commands and options."""

    path: tuple[str, ...]
    names: tuple[tuple[str, str], ...]


def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a script that completes commands and options in bash, zsh or fish.

    Examples:
      source <(kafkawire completion bash)
      kafkawire completion zsh > ~/.zfunc/_kafkawire
      kafkawire completion fish > ~/.config/fish/completions/kafkawire.fish
    """
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    try:
        write = scripts[parse_choice("SHELL", shell, tuple(scripts))]
    except OptionError as error:
        fail(error, 2)
    print(write(list(command_names(ctx.find_root().command))))


def command_names(command: Any, path: tuple[str, ...] = ()) -> Iterator[CommandNames]:
    """Yield the names of a command and of all commands below it."""
    below = list(getattr(command, "commands", ()))
    names = [(name, command.summary(name)) for name in below]
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            names += [(name, option_help(option)[1]) for name in sorted(option.opts)]
    yield CommandNames(path, (*names, ("--help", "Show this message and exit.")))
    for name in below:
        yield from command_names(command.get_command(None, name), (*path, name))


def _words(each: CommandNames) -> tuple[str, str]:
    """Return the commands and the options of a command, separated by spaces."""
    options = [name for name, _ in each.names if name.startswith("-")]
    below = [name for name, _ in each.names if not name.startswith("-")]
    return " ".join(below), " ".join(options)


def _bash(commands: list[CommandNames]) -> str:
    cases = "\n".join(
        f'        "{" ".join(each.path)}") below="{below}" options="{options}" ;;'
        for each in commands
        for below, options in (_words(each),)
    )
    paths = " ".join(f'"{" ".join(each.path)}"' for each in commands if each.path)
    return f"""# bash completion of {PROGRAM}
_{PROGRAM}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" path="" below="" options="" word known
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        for known in {paths}; do
            if [[ "${{path:+$path }}$word" == "$known" ]]; then path="$known"; break; fi
        done
    done
    case "$path" in
{cases}
    esac
    if [[ "$current" == -* ]]; then below="$options"; fi
    COMPREPLY=( $(compgen -W "$below" -- "$current") )
}}
complete -o default -F _{PROGRAM} {PROGRAM}"""


def _zsh(commands: list[CommandNames]) -> str:
    cases = "\n".join(
        f"        {_quoted(' '.join(each.path))}) names=("
        + " ".join(_quoted(f"{_zsh_name(name)}:{text}") for name, text in each.names)
        + ") ;;"
        for each in commands
    )
    paths = " ".join(_quoted(" ".join(each.path)) for each in commands if each.path)
    return f"""#compdef {PROGRAM}
_{PROGRAM}() {{
    local at="" word known
    local -a names
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        for known in {paths}; do
            if [[ "${{at:+$at }}$word" == "$known" ]]; then at="$known"; break; fi
        done
    done
    case "$at" in
{cases}
    esac
    if [[ "$words[CURRENT]" == -* ]]; then
        names=("${{(@M)names:#-*}}")
        _describe -o -t options option names
    else
        names=("${{(@)names:#-*}}")
        if (( $#names )); then _describe -t commands command names; else _files; fi
    fi
}}
if [[ "$funcstack[1]" == _{PROGRAM} ]]; then
    _{PROGRAM} "$@"
else
    compdef _{PROGRAM} {PROGRAM}
fi"""


def _zsh_name(name: str) -> str:
    return name.replace(":", "\\:")


def _fish(commands: list[CommandNames]) -> str:
    paths = " ".join(_quoted(" ".join(each.path)) for each in commands if each.path)
    lines = [
        f"""# fish completion of {PROGRAM}
function __{PROGRAM}_at
    set -l at ""
    for word in (commandline -opc)[2..-1]
        set -l longer (string trim -- "$at $word")
        if contains -- $longer {paths}
            set at $longer
        end
    end
    test "$at" = "$argv"
end"""
    ]
    for each in commands:
        at = _quoted(f"__{PROGRAM}_at {' '.join(each.path)}".rstrip())
        if not _words(each)[0]:
            lines.append(f"complete -c {PROGRAM} -n {at} -F")
        for name, text in each.names:
            if name.startswith("--"):
                word = f"-l {name[2:]}"
            else:
                word = f"-s {name[1:]}" if name.startswith("-") else f"-f -a {name}"
            lines.append(f"complete -c {PROGRAM} -n {at} {word} -d {_quoted(text)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return a text in single quotes, as one word of a script."""
    return "'" + text.replace("'", "'\\''") + "'"
