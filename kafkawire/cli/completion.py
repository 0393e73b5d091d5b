"""`kafkawire completion bash|zsh|fish`: a script that completes commands, options and values.

The script has the names of all commands and options in it: completing them starts no process. For
topics, groups, settings and quotas it runs `kafkawire completion SHELL --words WORDS`, which asks
the broker that the line names. Other values are completed as file names.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Annotated, Any

import typer

from kafkawire.cli.command import arguments, is_flag, option_help
from kafkawire.cli.shared.command_config import without_command_config
from kafkawire.cli.shared.options import parse_choice
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import LOCAL
from kafkawire.client.notation import OptionError

PROGRAM = "kafkawire"
SEPARATOR = "\t"
"""Of the words of --words."""
ANSWER_S = 1.0
"""How long a completion waits for a broker."""
TOPICS, GROUPS, SETTINGS, QUOTAS = "topics", "groups", "settings", "quotas"


@dataclass(frozen=True, slots=True)
class CommandNames:
    """Names to complete after a command: (name, help) of its commands and options."""

    path: tuple[str, ...]
    names: tuple[tuple[str, str], ...]
    has_values: bool


def completion(
    ctx: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    words: Annotated[
        str | None, typer.Option(hidden=True, help="Of that script: the words up to the cursor.")
    ] = None,
) -> None:
    """Print a script that completes commands, options and values in bash, zsh or fish.

    Topics and groups are those of the broker that the line names, if it answers within a second.

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
    root = ctx.find_root().command
    if words is None:
        print(write(list(command_names(root))))
        return
    for value in values_of(root, shell.lower(), words.split(SEPARATOR)):
        print(value)
    sys.stdout.flush()
    os._exit(0)  # a thread may still wait for a broker


def command_names(command: Any, path: tuple[str, ...] = ()) -> Iterator[CommandNames]:
    """Yield the names of a command and of all commands below it."""
    below = list(getattr(command, "commands", ()))
    names = [(name, command.summary(name)) for name in below]
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            names += [(name, option_help(option)[1]) for name in sorted(option.opts)]
    has_values = not below and any(_kind_of(each, path) for each in command.params)
    yield CommandNames(path, (*names, ("--help", "Show this message and exit.")), has_values)
    for name in below:
        yield from command_names(command.get_command(None, name), (*path, name))


def values_of(root: Any, shell: str, words: Sequence[str]) -> list[str]:
    """Return what the last of these words can be: topics, groups, settings or quotas."""
    words = list(without_command_config(_join_split_words(words) if shell == "bash" else words))
    command: Any = root
    path: tuple[str, ...] = ()
    rest: list[str] = []
    for word in words[:-1]:
        if word in getattr(command, "commands", ()):
            command, path, rest = command.get_command(None, word), (*path, word), []
        else:
            rest.append(word)
    option, equals, current = words[-1].rpartition("=")
    parameter = _parameter_at(command, rest, option if equals else "")
    if equals and not option.startswith("--"):
        return []  # the value of a setting
    kind = None if parameter is None else _kind_of(parameter, path)
    if kind is None:
        return []
    lead = option + equals if shell != "bash" else ""
    end = "=" if "=VALUE" in str(parameter.metavar) else ""
    found = [name for name in _names_of(kind, path, words) if name.startswith(current)]
    return [lead + name + end for name in sorted(set(found))]


def _join_split_words(words: Sequence[str]) -> list[str]:
    """Return words that bash has split at = and at :"""
    joined: list[str] = []
    continues = False
    for word in words:
        splits = word in ("=", ":")
        if joined and (splits or continues):
            joined[-1] += word
        else:
            joined.append(word)
        continues = splits
    return joined


def _parameter_at(command: Any, words: Iterable[str], option: str) -> Any:
    """Return the parameter whose value follows these words; `option`: that of --option=VALUE."""
    taking = {
        name: each
        for each in command.params
        if each.param_type_name == "option" and not is_flag(each)
        for name in each.opts
    }
    if option.startswith("--"):
        return taking.get(option)
    waiting, at = None, 0
    for word in words:
        if waiting is not None:
            waiting = None
        elif word.startswith("-"):
            waiting = taking.get(word)
        else:
            at += 1
    found = arguments(command)
    if waiting is not None or not found:
        return waiting
    last = len(found) - 1
    return found[at] if at <= last else found[last] if found[last].nargs == -1 else None


def _kind_of(parameter: Any, path: tuple[str, ...]) -> str | None:
    """Return what the values of a parameter are; None if they are not completed."""
    value = str(parameter.metavar or parameter.name).upper()
    if value == "TOPIC..." and path == ("topics", "create"):
        return None  # a new one
    if "TOPIC" in value or (path == ("topics", "copy") and value in ("SOURCE", "TARGET")):
        return TOPICS
    if value.strip("[").startswith("GROUP"):
        return GROUPS
    if value.startswith("QUOTA"):
        return QUOTAS
    is_name = value.startswith("NAME") and parameter.param_type_name == "argument"
    if {"--set", "--config"} & {*parameter.opts} and "=" in value:
        return SETTINGS
    return SETTINGS if path[:1] == ("configs",) and is_name else None


def _names_of(kind: str, path: tuple[str, ...], words: Sequence[str]) -> list[str]:
    if kind == QUOTAS:
        from kafkawire.security.quotas.alterations import CLIENT_KEYS, CONNECTIONS

        return [*CLIENT_KEYS, CONNECTIONS]
    if kind == SETTINGS:
        from kafkawire.codec.configs.group_config import GROUP_CONFIGS
        from kafkawire.codec.configs.table import BROKER_CONFIGS, TOPIC_CONFIGS

        if path[:1] == ("configs",) and "--group" in words:
            return list(GROUP_CONFIGS)
        of_topic = path == ("topics", "create") or "--topic" in words
        of_broker = path[:1] != ("configs",) or bool({"--broker", "--brokers-default"} & {*words})
        tables = [TOPIC_CONFIGS] if of_topic else [BROKER_CONFIGS]
        return list(chain(*(tables if of_topic or of_broker else [TOPIC_CONFIGS, BROKER_CONFIGS])))
    given = dict(pairwise(words)).get("--server")
    server = given or os.environ.get("KAFKAWIRE_SERVER") or LOCAL
    found: list[str] = []
    thread = threading.Thread(target=_ask, args=(kind, server, found), daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return found


def _ask(kind: str, server: str, found: list[str]) -> None:
    from kafkawire.cli.shared.outcomes import client_security
    from kafkawire.client.cluster import Cluster
    from kafkawire.client.errors import ClientError
    from kafkawire.client.groups import list_groups

    with suppress(ClientError, SystemExit), Cluster(server, security=client_security()) as cluster:
        if kind == GROUPS:
            found += [row.group for row in list_groups(cluster)]
        else:
            topics = cluster.metadata(None).topics
            found += [each.name for each in topics if not each.is_internal]


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
    asking = "|".join(f'"{" ".join(each.path)}"' for each in commands if each.has_values)
    return f"""# bash completion of {PROGRAM}
_{PROGRAM}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" path="" below="" options="" word known
    local IFS=$' \\t\\n'
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        for known in {paths}; do
            if [[ "${{path:+$path }}$word" == "$known" ]]; then path="$known"; break; fi
        done
    done
    case "$path" in
{cases}
    esac
    if [[ "$current" == -* ]]; then below="$options"; else
        case "$path" in {asking})
            IFS=$'\\t'; word="${{COMP_WORDS[*]:1:COMP_CWORD}}"; IFS=$' \\t\\n'
            below="$("${{COMP_WORDS[0]}}" completion bash --words "$word" 2>/dev/null)"
            current="${{current#=}}"
            if [[ "$below" == *= ]]; then compopt -o nospace 2>/dev/null; fi ;;
        esac
    fi
    COMPREPLY=( $(compgen -W "$below" -- "$current") )
}}
complete -o default -F _{PROGRAM} {PROGRAM}"""


def _zsh(commands: list[CommandNames]) -> str:
    cases = "\n".join(
        f"        {_quote(' '.join(each.path))}) names=("
        + " ".join(_quote(f"{_zsh_name(name)}:{text}") for name, text in each.names)
        + ") ;;"
        for each in commands
    )
    paths = " ".join(_quote(" ".join(each.path)) for each in commands if each.path)
    asking = "|".join(_quote(" ".join(each.path)) for each in commands if each.has_values)
    return f"""#compdef {PROGRAM}
_{PROGRAM}() {{
    local at="" word known
    local -a names values
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        for known in {paths}; do
            if [[ "${{at:+$at }}$word" == "$known" ]]; then at="$known"; break; fi
        done
    done
    case "$at" in
{cases}
    esac
    if [[ "$words[CURRENT]" == -* && "$words[CURRENT]" != *=* ]]; then
        names=("${{(@M)names:#-*}}")
        _describe -o -t options option names
    else
        names=("${{(@)names:#-*}}")
        case "$at" in ({asking})
            word="${{(pj:\\t:)words[2,CURRENT]}}"
            values=(${{(f)"$($words[1] completion zsh --words "$word" 2>/dev/null)"}})
        esac
        if (( $#names )); then _describe -t commands command names
        elif [[ "$values[1]" == *= ]]; then compadd -S "" -a values
        elif (( $#values )); then compadd -a values
        else _files; fi
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
    paths = " ".join(_quote(" ".join(each.path)) for each in commands if each.path)
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
end
function __{PROGRAM}_values
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l words (string join \\t -- $before[2..-1] "$current")
    set -l values
    type -q $before[1]; and set values ($before[1] completion fish --words "$words" 2>/dev/null)
    if test (count $values) -gt 0
        printf "%s\\n" $values
    else
        __fish_complete_path "$current"
    end
end"""
    ]
    for each in commands:
        at = _quote(f"__{PROGRAM}_at {' '.join(each.path)}".rstrip())
        if each.has_values:
            lines.append(f'complete -c {PROGRAM} -n {at} -f -a "(__{PROGRAM}_values)"')
        elif not _words(each)[0]:
            lines.append(f"complete -c {PROGRAM} -n {at} -F")
        for name, text in each.names:
            if name.startswith("--"):
                word = f"-l {name[2:]}"
            else:
                word = f"-s {name[1:]}" if name.startswith("-") else f"-f -a {name}"
            lines.append(f"complete -c {PROGRAM} -n {at} {word} -d {_quote(text)}")
    return "\n".join(lines)


def _quote(text: str) -> str:
    """Return a text in single quotes, as one word of a script."""
    return "'" + text.replace("'", "'\\''") + "'"
