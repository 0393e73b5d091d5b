"""One section of a job's TOML: typed values, with one sentence for each mistake. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from kafkawire.reading.model.source import InvalidInput

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}
SIZE = re.compile(r"(\d+)\s*(?:([kmg])i?)?b?", re.IGNORECASE)
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
DATE = re.compile(r"date\(\s*(\w+)\s*\)")
Made = TypeVar("Made")


class JobError(InvalidInput):
    """The job is invalid or cannot continue; one sentence."""


class JobSection:
    """The keys and values between one [header] and the next."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name, self.values = name, values

    def only(self, known: Collection[str]) -> None:
        """Reject a key that is not `known`, and suggest the nearest known one."""
        for key in self.values:
            if key in known:
                continue
            near = difflib.get_close_matches(key, list(known), 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            where = f"[{self.name}] has a key" if self.name else "the job has a section"
            raise JobError(f"{where} {key!r} that is not known; {hint}")

    def section(self, name: str, *, needed: bool = False) -> JobSection:
        """Return the sub-section `name`; empty if absent."""
        found = self.values.get(name, {})
        if not isinstance(found, Mapping):
            raise JobError(f"{name} is {found!r}, it must be a section [{name}]")
        if needed and not found:
            raise JobError(f"the job has no section [{name}]")
        return JobSection(name, found)

    def wrong(self, key: str, allowed: str) -> JobError:
        """Return the error that `key` must be `allowed`."""
        value = self.values.get(key)
        if value is None or value == "":
            return JobError(f"[{self.name}] needs {key}: {allowed}")
        return JobError(f"[{self.name}] {key} is {value!r}, it must be {allowed}")

    def get_text(self, key: str, *, needed: bool = False) -> str:
        """Return a string, "" by default."""
        value = self.values.get(key, "")
        if not isinstance(value, str) or (needed and not value):
            raise self.wrong(key, "a string")
        return value

    def get_name(self, key: str) -> str:
        """Return a name that can be part of a file name."""
        value = self.get_text(key, needed=True)
        if not NAME.fullmatch(value):
            raise self.wrong(key, "letters, digits, '.', '_' and '-', 100 at most")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings, given as a list or as one string with commas."""
        value = self.values.get(key, [])
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise self.wrong(key, "a string or a list of strings")
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    def one_of(self, key: str, allowed: Collection[str], default: str) -> str:
        value = self.values.get(key, default)
        if value not in allowed:
            raise self.wrong(key, f"one of {', '.join(allowed)}")
        return str(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def get_size(self, key: str, default: int, least: int, most: int) -> int:
        """Return bytes, given as a number or a string like "64 MiB"; k, M, G are powers of 1024."""
        value = self.values.get(key, default)
        match = SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
        if match:
            value = int(match[1]) * UNITS[(match[2] or "").lower()]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(key, f"bytes from {least} to {most}, like 67108864 or '64 MiB'")
        return value

    def seconds(self, key: str, default: float) -> float:
        """Return seconds, given as "30 s", "5 min", "1 h", "7 d", "500 ms" or a number of
        seconds."""
        value = self.values.get(key, default)
        match = DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match:
            value = float(match[1]) * SECONDS[match[2]]
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e7:
            raise self.wrong(key, "a time like '30 s', '5 min' or '1 h'")
        return float(value)

    def pattern(self, key: str) -> str:
        """Return a regular expression, "" by default."""
        value = self.get_text(key)
        try:
            re.compile(value)
        except re.error as error:
            raise self.wrong(key, f"a regular expression ({error})") from None
        return value

    def get_partitions(self, key: str) -> Mapping[str, tuple[int, ...]] | None:
        """Return topic -> partitions, given as `assign = { orders = [0, 1] }`; None if absent."""
        value = self.values.get(key)
        if value is None:
            return None
        try:
            found = {str(topic): tuple(map(_natural, parts)) for topic, parts in value.items()}
            if not all(found.values()):
                raise ValueError
            return found
        except (AttributeError, TypeError, ValueError):
            raise self.wrong(key, "partitions by topic, like { orders = [0, 1] }") from None

    def offsets(
        self, key: str, words: Collection[str], default: str
    ) -> str | Mapping[str, Mapping[int, int]]:
        """Return one of the words, or offsets by topic and partition."""
        value = self.values.get(key, default)
        if isinstance(value, str) and value in words:
            return value
        try:
            return {
                str(topic): {_natural(int(part)): _natural(at) for part, at in parts.items()}
                for topic, parts in value.items()
            }
        except (AttributeError, TypeError, ValueError):
            also = " or ".join(map(repr, words))
            raise self.wrong(key, f"{also} or offsets, like {{ orders = {{ 0 = 100 }} }}") from None

    def properties(self, key: str) -> Mapping[str, Any] | None:
        """Return names and values, as strings except for sections; None if absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a section of names and values")
        return {
            str(name): one if isinstance(one, Mapping) else str(one) for name, one in value.items()
        }

    def settings(self) -> Mapping[str, str]:
        """Return settings of Spark. TOML parses the dots of an unquoted name as sections."""
        found: dict[str, str] = {}

        def take(prefix: str, values: Mapping[str, Any]) -> None:
            for key, value in values.items():
                name = f"{prefix}{key}"
                if isinstance(value, Mapping):
                    take(f"{name}.", value)
                elif not name.startswith("spark."):
                    raise JobError(
                        f"[{self.name}] has {name!r}; Spark's settings begin with spark."
                    )
                elif not isinstance(value, str | int | float):
                    raise JobError(f"[{self.name}] {name} is {value!r}, it must be one value")
                else:
                    found[name] = str(value).lower() if isinstance(value, bool) else str(value)

        take("", self.values)
        return found

    def partition_columns(
        self, key: str, make: Callable[[str, str, bool], Made]
    ) -> tuple[Made, ...]:
        """Return columns, or `date(COLUMN)` for the day of a timestamp; `make(name, column,
        by_date)`.

        The day of a record's own timestamp is called `date`, that of another column COLUMN_date.
        """
        found = []
        for text in self.texts(key):
            match = DATE.fullmatch(text)
            if match:
                record_time = match[1] in ("timestamp", "_timestamp")
                column = "_timestamp" if record_time else match[1]
                name = "date" if record_time else f"{column}_date"
                found.append(make(name, column, True))
            elif re.fullmatch(r"\w+", text):
                found.append(make(text, text, False))
            else:
                raise self.wrong(key, "columns, or date(COLUMN) of a timestamp column")
        return tuple(found)


def _natural(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value
