"""Options that several commands have together, declared once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any, get_type_hints


class OptionSet:
    """Base of a dataclass whose fields are options, each with a default."""


def with_options(run: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer with the options of each OptionSet among the parameters of a
    function, in its place; the function gets the OptionSet."""
    hints = get_type_hints(run, include_extras=True)
    sets = {name: kind for name, kind in hints.items() if _is_set(kind)}
    parameters: list[Parameter] = []
    for parameter in signature(run).parameters.values():
        if parameter.name in sets:
            parameters += _options(sets[parameter.name])
        else:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))

    @functools.wraps(run)
    def command(**given: Any) -> None:
        for name, kind in sets.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        run(**given)

    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = signature(run).replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _is_set(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OptionSet)


def _options(kind: Any) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]
