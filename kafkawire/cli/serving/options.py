"""The options of `kafkawire serve`, in one table, and the parser of its command line.

The table is read by the parser here, by kafkawire.cli.serving.sources (environment, TOML file,
defaults) and by kafkawire.cli.serving.command (help and completion). `serve` has a parser without
typer, whose import takes a fifth of a start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from kafkawire.cli.shared.command_config import without_command_config
from kafkawire.cli.shared.output import fail


class Option(NamedTuple):
    """One option. `default`: its values if it is not given; None: it is an option of the command
    line only, without a variable of the environment and a key of the TOML file."""

    name: str  # without dashes
    metavar: str  # empty: a flag, which is true or false in the environment and in the file
    help: str
    default: tuple[str, ...] | None = None
    is_list: bool = False  # may be repeated; commas between values in the environment
    is_hidden: bool = False


OPTIONS = (
    Option(
        "listen",
        "[PROTOCOL://]HOST:PORT",
        "Address to listen on; may be repeated. Protocols: PLAINTEXT (the default), TLS, "
        "SASL_PLAINTEXT, SASL_TLS; NAME=PROTOCOL:// names the listener.",
        ("127.0.0.1:9092",),
        is_list=True,
    ),
    Option(
        "advertise",
        "[NAME://]HOST:PORT",
        "Address returned to clients of listener NAME.",
        (),
        is_list=True,
    ),
    Option("data", "DIR", "Data folder.", ("kafkawire-data",)),
    Option("metadata", "URL", "Metadata database. [default: SQLite in the data folder]", ("",)),
    Option("tier", "URL", "Remote tier: s3://BUCKET/PREFIX or a folder. [default: none]", ("",)),
    Option(
        "set", "NAME=VALUE", "Broker setting (see docs/configs.md); may be repeated.", is_list=True
    ),
    Option("config", "FILE", "Configuration file in TOML."),
    Option("log-level", "LEVEL", "debug, info, warning or error.", ("info",)),
    Option("log-format", "FORMAT", "text or json.", ("text",)),
    Option(
        "insecure", "", "Allow PLAINTEXT listeners that other machines can connect to.", ("false",)
    ),
    Option(
        "workers",
        "N",
        "Number of processes that serve, each on a core of its own.",
        ("1",),
    ),
    Option(
        "worker-ports",
        "[NAME://]PORTS",
        "Ports of the workers' own addresses: 9093-9096 or 9093,9095. "
        "[default: those after the port of --listen]",
        (),
        is_list=True,
    ),
    Option(
        "console",
        "HOST:PORT",
        "Address of a web console on the loopback interface, such as 127.0.0.1:8080. "
        "[default: none]",
        ("",),
    ),
    Option("worker", "ROLE", "Of a worker: what the supervisor gave it.", is_hidden=True),
    Option("show-config", "", "Print each setting, its value and its source, then exit."),
)
DEFAULTS = {each.name: each.default for each in OPTIONS if each.default is not None}
LISTS = {each.name for each in OPTIONS if each.is_list}
FLAGS = {each.name for each in OPTIONS if not each.metavar}
HELP = "--help"
_BY_WORD = {**{f"--{each.name}": each for each in OPTIONS}, HELP: Option("help", "", "")}


@dataclass(slots=True)
class Given:
    """Arguments of the command line. `options` by name without dashes (listen, data, ...), only
    those that were given; `settings` as NAME=VALUE; `config` the path of a TOML file; `worker` the
    role of a worker as the supervisor gave it."""

    options: Mapping[str, Sequence[str]]
    settings: Sequence[str]
    config: str | None
    show_config: bool
    worker: str | None = None

    def words(self) -> list[str]:
        """Return a command line without the program that gives the same, except `worker` and
        `show_config`."""
        words = ["serve"]
        for name, values in self.options.items():
            words += [f"--{name}" if name in FLAGS else f"--{name}={each}" for each in values]
        words += [f"--set={each}" for each in self.settings]
        return words if self.config is None else [*words, f"--config={self.config}"]


def parse(words: Sequence[str]) -> Given | None:
    """Parse the words after `serve`; None if they ask for help. A wrong command line ends the
    program with one sentence and exit code 2."""
    found: dict[str, list[str]] = {}
    extra: list[str] = []
    left = iter(list(without_command_config(words)))
    for word in left:
        name, equals, value = word.partition("=")
        if word == "--":
            extra += left
        elif word == "-" or not word.startswith("-"):
            extra.append(word)
        elif name not in _BY_WORD:
            _refuse(f"no such option: {name}{_similar(name)}")
        elif not _BY_WORD[name].metavar:
            if equals:
                _refuse(f"option '{name}' does not take a value")
            found[name] = ["true"]
        else:
            if not equals:
                following = next(left, None)
                if following is None:
                    _refuse(f"option '{name}' requires an argument")
                value = following
            found.setdefault(name, []).append(value)
    if extra:
        _refuse(f"got unexpected extra argument(s) ({' '.join(extra)})")
    return None if HELP in found else _make_given(found)


def _make_given(found: Mapping[str, list[str]]) -> Given:
    last = {word: values[-1] for word, values in found.items()}
    return Given(
        {
            each.name: found[word] if each.is_list else [last[word]]
            for word, each in _BY_WORD.items()
            if word in found and each.default is not None
        },
        found.get("--set", []),
        last.get("--config"),
        "--show-config" in found,
        last.get("--worker"),
    )


def _similar(name: str) -> str:
    from difflib import get_close_matches  # only after a typing error

    near = sorted(get_close_matches(name, _BY_WORD))
    return f" (Possible options: {', '.join(near)})" if near else ""


def _refuse(sentence: str) -> NoReturn:
    fail(f"{sentence} (see kafkawire serve {HELP})", 2)
