"""A command of typer with our help, our errors and the names that options had before.

typer's own help shows types (`<list[str]>`, `<int range>`) and usage errors of several lines; here
the help has names for people and examples as they are typed, and an error is one sentence. Options
that were renamed stay accepted under their old name, which no help shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from typer import BadParameter
from typer.core import TyperCommand

from kafkawire.cli.shared.command_config import without_command_config
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
        return super().parse_args(ctx, list(self._renamed(list(without_command_config(args)))))

    def _renamed(self, words: Sequence[str]) -> Iterator[str]:
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
