"""Sources of settings: command line, then environment, then TOML file, then default.

Reads the environment and the file, validates every value with its source (which an error names) and
keeps the source for `--show-config`. kafkawire.cli.shared.options and
kafkawire.codec.configs.settings interpret the values.

Environment: KAFKAWIRE_LISTEN, KAFKAWIRE_ADVERTISE and KAFKAWIRE_WORKER_PORTS (commas between
several), KAFKAWIRE_DATA, KAFKAWIRE_METADATA, KAFKAWIRE_TIER, KAFKAWIRE_CONFIG, KAFKAWIRE_LOG_LEVEL,
KAFKAWIRE_LOG_FORMAT, KAFKAWIRE_WORKERS, and any setting as KAFKAWIRE_SET_ with its dots as
underscores: KAFKAWIRE_SET_NUM_PARTITIONS=3, those of a listener, too, unless there are dots or
dashes in its name. Other KAFKAWIRE_* variables are ignored: Kubernetes sets some for a service
named kafkawire.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafkawire.cli.serving.options import DEFAULTS, FLAGS, LISTS
from kafkawire.cli.shared.options import LOG_FORMATS, LOG_LEVELS, parse_choice, parse_number
from kafkawire.client.notation import OptionError, plain_value
from kafkawire.codec.configs.listeners import (
    LISTENER_SETTINGS,
    MECHANISM_SETTINGS,
    find_listener_row,
    is_prefixed,
    split_listeners,
)
from kafkawire.codec.configs.listeners import (
    PREFIX as LISTENER_PREFIX,
)
from kafkawire.codec.configs.settings import (
    BROKER_CONFIGS,
    Config,
    ConfigError,
    ConfigType,
    check_broker,
    find,
    validate,
)

WORKERS_MAX = 64
"""Each worker is a process of 62 MiB for one core, with a port and a log of its own."""
PREFIX = "KAFKAWIRE_"
SETTING_PREFIX = "KAFKAWIRE_SET_"
ALIASES = {"tier": "tier.url"}
"""Options that are also settings, short for `--set`: within one source the option takes
precedence."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value (one text; several for --listen and --advertise) and its source."""

    values: tuple[str, ...] = field(repr=False)  # may be secret
    source: str

    @property
    def text(self) -> str:
        return ",".join(self.values)


@dataclass(slots=True)
class Sources:
    """All given values; for each name only the one of the source with the highest precedence."""

    options: dict[str, Sourced] = field(default_factory=dict)
    settings: dict[str, Sourced] = field(default_factory=dict)

    def offer_option(self, name: str, value: Sourced) -> None:
        """Take a value unless a source with higher precedence has set it."""
        if name not in self.options:
            _check_option(name, value)
            self.options[name] = value
            if name in ALIASES and value.text:
                self.offer_setting(ALIASES[name], value.text, value.source)

    def texts(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the settings of the whole broker, and those of single listeners."""
        return split_listeners({name: each.text for name, each in self.settings.items()})

    def offer_setting(self, name: str, text: str, source: str) -> None:
        """Take a broker setting unless a source with higher precedence has set it."""
        if name not in self.settings:
            try:
                row = _row(name)
                text = plain_value(name, text)
                validate(row, text)
            except OptionError as error:
                allowed = str(error).removeprefix(f"{name}={text}: ")
                raise ConfigError(name, text, f"{allowed} ({source})") from None
            except ConfigError as error:
                raise ConfigError(name, error.value, f"{error.allowed} ({source})") from None
            self.settings[name] = Sourced((text,), source)


def collect(
    options: Mapping[str, Sequence[str]],
    settings: Sequence[tuple[str, str]],
    environ: Mapping[str, str],
    config_file: str | None,
) -> Sources:
    """Collect all sources in order of precedence. `options` are those of the command line (empty:
    not given); of a setting given twice there the last one is used. Raises ConfigError,
    OptionError."""
    found = Sources()
    for name, values in options.items():
        if values:
            found.offer_option(name, Sourced(tuple(values), f"command line --{name}"))
    for name, text in dict(settings).items():
        if _row(name).type is ConfigType.PASSWORD:  # other users see it in `ps`
            where = f"the environment ({SETTING_PREFIX}{_variable(name)}) or the TOML file"
            raise ConfigError(name, None, f"it must not be on the command line, but in {where}")
        found.offer_setting(name, text, "command line --set")
    _from_environment(found, environ)
    path = config_file or environ.get(PREFIX + "CONFIG")
    if path:
        _from_file(found, path)
    for name, values in DEFAULTS.items():
        found.offer_option(name, Sourced(values, "default"))
    check_broker(found.texts()[0])
    return found


def _row(name: str) -> Config:
    """Return the row of a setting of the broker or of one listener. ConfigError if unknown."""
    return find_listener_row(name) if is_prefixed(name) else find(name, BROKER_CONFIGS)


def _check_option(name: str, value: Sourced) -> None:
    where = name if value.source == "default" else f"{name} ({value.source})"
    if name == "log-level":
        parse_choice(where, value.text, LOG_LEVELS)
    elif name == "log-format":
        parse_choice(where, value.text, LOG_FORMATS)
    elif name in FLAGS:
        parse_choice(where, value.text, ("true", "false"))
    elif name == "workers":
        parse_number(where, value.text, 1, WORKERS_MAX)
    elif name == "data" and not value.text:
        raise OptionError(where, value.text, "a folder")


def _variable(name: str) -> str:
    return name.upper().replace(".", "_").replace("-", "_")


def _from_environment(found: Sources, environ: Mapping[str, str]) -> None:
    for name in DEFAULTS:
        text = environ.get(PREFIX + _variable(name))
        if text:
            values = tuple(text.split(",")) if name in LISTS else (text,)
            found.offer_option(name, Sourced(values, f"environment {PREFIX}{_variable(name)}"))
    names = {_variable(name): name for name in BROKER_CONFIGS}
    for variable, text in environ.items():
        if variable.startswith(SETTING_PREFIX):
            rest = variable.removeprefix(SETTING_PREFIX)
            name = names.get(rest) or _of_listener(rest) or rest.lower().replace("_", ".")
            found.offer_setting(name, text, f"environment {variable}")


def _of_listener(variable: str) -> str | None:
    """Return the name of a setting of one listener; underscores in the listener's name stay."""
    prefix = _variable(LISTENER_PREFIX)
    if variable.startswith(prefix):
        for setting in (*MECHANISM_SETTINGS, *LISTENER_SETTINGS):  # the longer names first
            ending = f"_{_variable(setting)}"
            if variable.endswith(ending):
                listener = variable.removeprefix(prefix).removesuffix(ending)
                return f"{LISTENER_PREFIX}{listener.lower()}.{setting}"
    return None


def _from_file(found: Sources, path: str) -> None:
    import tomllib  # only if there is a file

    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError("config", path, f"a readable file ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError("config", path, f"a valid TOML file ({error})") from None
    source = f"file {path}"
    for name, value in content.items():
        if name == "settings" and isinstance(value, dict):
            for setting, item in _flat(value, ""):
                found.offer_setting(setting, item, source)
        elif name in DEFAULTS:
            found.offer_option(name, Sourced(_texts(name, value, source), source))
        else:
            allowed = ", ".join(DEFAULTS) + " or the table [settings]"
            raise OptionError(f"config {path}", name, f"one of {allowed}")


def read_file(path: str) -> bytes | None:
    """Return the content of a file; None for a pipe, which can be read only once. Raises
    OSError."""
    file = Path(path)
    return file.read_bytes() if file.is_file() or not file.exists() else None


def _texts(name: str, value: Any, source: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if name in FLAGS and isinstance(value, bool):
        return (str(value).lower(),)
    if name == "workers" and isinstance(value, int):
        return (str(value),)
    is_texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
    if name in LISTS and is_texts:
        return tuple(value)
    kind = "a string or a list of strings" if name in LISTS else "a string"
    raise OptionError(f"{name} ({source})", value, kind)


def _flat(table: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    """Yield dotted names: TOML parses `num.partitions = 3` as a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        elif isinstance(value, bool):
            yield before + key, "true" if value else "false"
        elif isinstance(value, list):
            yield before + key, ",".join(str(item) for item in value)
        else:
            yield before + key, str(value)
