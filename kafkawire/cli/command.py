"""A command of typer with our help, our errors and the names that options had before.

typer's own help shows types (`<list[str]>`, `<int range>`) and usage errors of several lines; here
the help has names for people and examples as they are typed, and an error is one sentence. Options
that were renamed stay accepted under their old name, which no help shows.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from kafkawire.cli.shared.command_config import without_command_config
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import INT16, INT32, INT64

USAGE_ERROR: type[Exception] = BadParameter.__mro__[1]
"""click's UsageError, which typer does not export: its messages are for users."""
RENAMED: Mapping[str, tuple[str, ...]] = {
    "--bootstrap": ("--server",),
    "--broker-id": ("--broker",),
    "--data": ("--source",),
    "--days": ("--valid-for",),
    "--duration-ms": ("--longer-than",),
    "--export": ("--output",),
    "--max": ("--limit",),
    "--max-transaction-timeout": ("--longer-than",),
    "--out": ("--output",),
    "--partitions": ("--partition-map", "--verbose"),
    "--since": ("--from",),
    "--to": ("--until",),
    "--topics": ("--topic",),
    "-p": ("--verbose",),
}
"""Old names of options with those that replaced them; a command takes the first that it has."""
EXAMPLES = "Examples:"
UNSHOWN_MAXIMA = (INT16, INT32, INT64)
"""Maxima of the protocol's fields, which say nothing to a reader of the help."""
NUMBERS = {int: "a whole number", float: "a number"}


class Command(TyperCommand):
    """A command whose help and errors are for people."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with old names of options replaced."""
        return super().parse_args(
            ctx, list(self._rename_old_options(list(without_command_config(args))))
        )

    def _rename_old_options(self, words: Sequence[str]) -> Iterator[str]:
        known = {name for parameter in self.params for name in parameter.opts}
        for at, word in enumerate(words):
            if word == "--":
                yield from words[at:]
                return
            name, equals, value = word.partition("=")
            new = next((each for each in RENAMED.get(name, ()) if each in known), None)
            yield word if new is None or name in known else new + equals + value

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name in the usage line."""
        return ["[OPTIONS]", *(argument_usage(each) for each in arguments(self))]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the help text, examples line by line."""
        text, _, examples = (self.help or "").partition(f"\n{EXAMPLES}\n")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text.rstrip())
        lines = [line.strip() for line in examples.splitlines() if line.strip()]
        if lines:
            with formatter.section(EXAMPLES.rstrip(":")):
                for line in lines:
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments with help, and options."""
        explained = [(argument_usage(each), each.help) for each in arguments(self) if each.help]
        if explained:
            with formatter.section("Arguments"):
                formatter.write_dl(explained)
        with formatter.section("Options"):
            formatter.write_dl([option_help(each) for each in options(self, ctx)])


class StartedCommand(Command):
    """A command that parses its words without typer, which is here for its help only."""

    start: ClassVar[Callable[[list[str]], int | None]]
    """Runs the words and returns the exit code, or None if they ask for help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words for `start`."""
        ctx.params["words"] = args
        return args

    def invoke(self, ctx: Any) -> Any:
        """Run the command, or print its help."""
        code = type(self).start(ctx.params["words"])
        if code is None:
            print(ctx.get_help())
        raise SystemExit(code or 0)


def arguments(command: Any) -> list[Any]:
    """Return the arguments of a command."""
    return [each for each in command.params if each.param_type_name == "argument"]


def options(command: Any, ctx: Any) -> list[Any]:
    """Return the options of a command that help shows, --help last."""
    shown = command.params if ctx is None else command.get_params(ctx)
    return [each for each in shown if each.param_type_name == "option" and not each.hidden]


def argument_usage(argument: Any) -> str:
    """Return an argument as in a usage line: TOPIC, TOPIC... or [TOPIC...]."""
    name = (argument.metavar or argument.name.upper()).strip("[]").removesuffix("...")
    if argument.metavar and "[" in argument.metavar.strip("[]"):
        name = argument.metavar.removesuffix("...")  # an optional part, as in TOPIC[:0,1]
    name += "..." if argument.nargs != 1 else ""
    return name if argument.required else f"[{name}]"


def option_help(option: Any) -> tuple[str, str]:
    """Return names with the value's name, and the help with default and environment variable."""
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    if option.secondary_opts:
        names += " / " + ", ".join(option.secondary_opts)
    if not is_flag(option):
        names += f" {value_name(option)}"
    notes = list(_notes(option))
    help_text = option.help or ""
    return names, f"{help_text} [{'; '.join(notes)}]".strip() if notes else help_text


def is_flag(option: Any) -> bool:
    """Return whether an option takes no value."""
    return bool(getattr(option, "is_flag", False))


def value_name(option: Any) -> str:
    """Return the name of an option's value in the help."""
    if option.metavar:
        return str(option.metavar)
    return "N" if number_type(option) else str(option.name).upper()


def number_type(option: Any) -> type | None:
    """Return int or float if that is what the option takes; None otherwise."""
    text = str(getattr(getattr(option, "type_descriptor", None), "annotation", ""))
    for kind in (int, float):
        if kind.__name__ in text:
            return kind
    return None


def _notes(option: Any) -> Iterator[str]:
    if option.required:
        yield "required"
    default = option.default
    is_shown = default is not None and default not in ("", [], ()) and not is_flag(option)
    if is_shown and option.show_default and default != -1:
        yield f"default: {default:g}" if isinstance(default, float) else f"default: {default}"
    if isinstance(option.envvar, str):
        yield f"environment: {option.envvar}"
    low, high = getattr(option, "min", None), getattr(option, "max", None)
    if high is not None and high not in UNSHOWN_MAXIMA and low is not None:
        yield f"{low:g} to {high:g}"


def sentence(error: Any, words: Sequence[str]) -> str:
    """Return a usage error as one sentence; `words`: the command line without the program."""
    parameter = getattr(error, "param", None)
    text = " ".join(str(error.format_message()).split()).removesuffix(".")
    kind = None if parameter is None else number_type(parameter)
    if parameter is not None and kind is not None and isinstance(error, BadParameter):
        value = _value_of(parameter, words)
        if value is not None:
            return f"{parameter.opts[0]}={value}: it must be {_number(parameter, kind)}"
    path = getattr(getattr(error, "ctx", None), "command_path", "kafkawire")
    return f"{text[:1].lower()}{text[1:]} (see {path} --help)"


def _value_of(option: Any, words: Sequence[str]) -> str | None:
    """Return the value of an option on the command line: the last one that is given."""
    found = None
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in option.opts:
            found = value if equals else next(iter(words[at + 1 : at + 2]), None)
    return found


def _number(option: Any, kind: type) -> str:
    low, high = getattr(option, "min", None), getattr(option, "max", None)
    text = NUMBERS[kind]
    if low is not None and high is not None:
        return f"{text} from {low} to {high}"
    return text if low is None else f"{text} of at least {low}"


# Groups of commands that are named in a table and imported when one of them is run.
#
# A command is a function with its options in its signature and its help in its docstring. A module
# with START has a StartedCommand. The help of a group reads the first sentence of each docstring
# from the source, which imports no command.


PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
"""Settings for help and errors without rich, which loads slowly and cannot be piped."""


class LazyGroup(TyperGroup):
    """A group whose `places` name `module:function`, below kafkawire.cli or in kafkawire_spark, by
    command."""

    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Names for the help and for suggestions after a typing error.
        self.commands = {**self.commands, **{name: TyperCommand(name) for name in self.places}}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; None if there is none of this name."""
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, function = self.places[cmd_name].partition(":")
        imported = import_module(_full_name(module))
        return _command(cmd_name, getattr(imported, function), getattr(imported, "START", None))

    def summary(self, name: str) -> str:
        """Return the first sentence of the help of a command or group."""
        if name in self.places:
            return summary_of(self.places[name])
        return first_sentence(self.commands[name].help or "")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options, then commands with their summaries."""
        with formatter.section("Options"):
            formatter.write_dl([option_help(each) for each in options(self, ctx)])
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.summary(name)) for name in self.commands])

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; a usage error is one sentence, with exit code 2."""
        given = extra.get("args", args[0] if args else None)
        words = sys.argv[1:] if given is None else list(given)
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except USAGE_ERROR as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                print(error, file=sys.stderr)
                raise SystemExit(2) from None
            fail(sentence(error, words), 2)
        except typer.Abort:
            fail("aborted")
        raise SystemExit(code if isinstance(code, int) else 0)


@cache
def _command(
    name: str, run: Callable[..., Any], start: Callable[[list[str]], int | None] | None
) -> Any:
    """Return the command that calls a function. It keeps no state of its runs, and Typer takes ten
    times as long to build one as to parse its arguments, so one is built for each function."""
    kind: Any = Command
    if start is not None:
        kind = type("Started", (StartedCommand,), {"start": staticmethod(start)})
    single = typer.Typer(add_completion=False, **PLAIN)
    single.command(name, cls=kind)(run)
    return typer.main.get_command(single)


@cache
def summary_of(place: str) -> str:
    """Return the first sentence of the docstring of `module:function`, see LazyGroup."""
    module, _, function = place.partition(":")
    top, *parts = _full_name(module).split(".")
    path = Path(import_module(top).__path__[0], *parts).with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return first_sentence(ast.get_docstring(node) or "")
    return ""


def _full_name(module: str) -> str:
    return module if module.startswith("kafkawire_") else f"kafkawire.cli.{module}"


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text on one line."""
    return re.split(r"(?<=\.) ", " ".join(text.partition("\n\n")[0].split()))[0]


def group(text: str, places: Mapping[str, str]) -> typer.Typer:
    """Return a group with this help text and these commands."""
    made = typer.Typer(
        cls=type("Group", (LazyGroup,), {"places": places}),
        help=text,
        no_args_is_help=True,
        add_completion=False,
        **PLAIN,
    )
    made.callback(help=text)(_nothing)
    return made


def _nothing() -> None:
    """Callback for typer, which creates no group without a callback or a command."""
