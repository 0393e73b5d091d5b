"""Filters of view topics: expressions over the key, timestamp, headers and value of a record.

    filter     = conjunction ("or" conjunction)*
    conjunction = negation ("and" negation)*
    negation   = "not" negation | "(" filter ")" | comparison
    comparison = operand ("==" | "!=" | "<" | "<=" | ">" | ">=") literal
               | operand "in" "(" literal ("," literal)* ")" | operand "startswith" string
    operand    = "key" | "timestamp" | "header(" string ")" | "value" ("." name | "[" string "]")*
    literal    = string | number | "true" | "false" | "null"

Strings are in single quotes, and two single quotes in one stand for one. `key`, `value` and headers
are compared as bytes, with the UTF-8 of the string; of headers with one name the last counts, as in
Kafka's Headers.lastHeader. `value.a.b` is a field of a JSON object. What is missing is null. An
order (`<`) holds only between two numbers or two strings. A timestamp is in milliseconds; in place
of a number it takes a string with an ISO 8601 time, of UTC without a time zone.

A filter is parsed once into functions of a record; users cannot run code. It also knows what it
permits to skip: `keys`, one of which each match has, `since_ms`, before which none is, and
`needles`, bytes of which each match has one. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from kafkawire.codec.batches import read_headers
from kafkawire.codec.record_columns import RecordColumns, read_time_delta
from kafkawire.codec.varint import put_varint, read_varint

MAX_CHARS: Final = 4_096
MAX_COMPARISONS: Final = 32
"""With so many each record takes 20 to 40 microseconds of the event loop."""
FILTERS_KEPT: Final = 1_000
MAX_DEPTH: Final = 32
"""Nested parentheses and `not`: far from Python's limit of recursion."""
MAX_JSON_BYTES: Final = 256 << 10
"""Values with more bytes have no fields: to parse one takes 2 ms of the event loop, and cannot be
interrupted."""

Needle = bytes | re.Pattern[bytes]
"""Bytes that are searched for, or a pattern of them."""
Literal = str | bytes | int | float | bool | None
Read = Callable[["Row"], Literal]
Test = Callable[["Row"], bool]

T = TypeVar("T")

_TOKEN = re.compile(
    r"\s*(?:('(?:[^']|'')*')|(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)|([A-Za-z_][A-Za-z0-9_-]*)"
    r"|(==|!=|<=|>=|[<>().,\[\]]))"
)
_WORDS: Final = {"true": True, "false": False, "null": None}


class FilterError(ValueError):
    """A text that is no filter; the message says where and why."""


class FilterHints(NamedTuple):
    """Facts about all matches: each has one of the `keys`; a timestamp from `since_ms` on; one of
    the `needles` among the bytes of the record. None: not known."""

    keys: frozenset[bytes] | None = None
    since_ms: int | None = None
    needles: frozenset[Needle] | None = None

    def both(self, other: FilterHints) -> FilterHints:
        """Return the hints of `and`."""
        since = [each.since_ms for each in (self, other) if each.since_ms is not None]
        return FilterHints(
            _fewer(self.keys, other.keys),
            max(since, default=None),
            _fewer(self.needles, other.needles),
        )

    def either(self, other: FilterHints) -> FilterHints:
        """Return the hints of `or`."""
        since = None
        if self.since_ms is not None and other.since_ms is not None:
            since = min(self.since_ms, other.since_ms)
        keys: frozenset[bytes] | None = None
        needles: frozenset[Needle] | None = None
        if self.keys is not None and other.keys is not None:
            keys = self.keys | other.keys
        if self.needles is not None and other.needles is not None:
            needles = self.needles | other.needles
        return FilterHints(keys, since, needles)


def _fewer(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    found = [each for each in (one, other) if each is not None]
    return min(found, key=len, default=None)


class Row:
    """One record of a batch; its parts are read when a filter asks for them. IndexError for bytes
    that are no record."""

    __slots__ = ("_at", "_columns", "_fields", "_headers", "_time")

    def __init__(
        self, columns: RecordColumns, at: int, base_ms: int, append_ms: int | None
    ) -> None:
        """`append_ms`: the timestamp of all records of a batch with LogAppendTime."""
        self._columns = columns
        self._at = at
        self._time = base_ms, append_ms
        self._headers: list[tuple[str, bytes | None]] | None = None
        self._fields: object = ...

    def key(self) -> bytes | None:
        return self._columns.keys[self._at]

    def timestamp(self) -> int:
        base_ms, append_ms = self._time
        if append_ms is not None:
            return append_ms
        return base_ms + read_time_delta(self._columns.data, self._columns.record_start(self._at))

    def _value(self) -> tuple[int, int]:
        """Return where the value begins, and its length; -1 if it is null."""
        size, at = read_varint(self._columns.data, self._columns.values[self._at])
        return at, size

    def value(self) -> bytes | None:
        at, size = self._value()
        return None if size < 0 else self._columns.data[at : at + size]

    def header(self, name: str) -> bytes | None:
        """Return the last header of a name."""
        if self._headers is None:
            columns = self._columns
            at, size = self._value()
            self._headers = read_headers(columns.data, at + max(size, 0), columns.stops[self._at])
        return next((value for each, value in reversed(self._headers) if each == name), None)

    def field(self, path: tuple[str, ...]) -> Literal:
        """Return a field of a JSON object; None if it is missing, or no single value."""
        if self._fields is ...:
            self._fields = _load_json(self.value())
        found = self._fields
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found if isinstance(found, (str, int, float)) else None


def _load_json(value: bytes | None) -> object:
    if value is None or len(value) > MAX_JSON_BYTES:
        return None
    try:
        return json.loads(value.decode())
    # Among others: no UTF-8, too many digits, too deep.
    except (ValueError, RecursionError):
        return None


class Filter:
    """A parsed filter. `matches`: whether it keeps a record."""

    __slots__ = ("hints", "matches", "text")

    def __init__(self, text: str, matches: Test, hints: FilterHints) -> None:
        self.text = text
        self.matches = matches
        self.hints = hints


@lru_cache(FILTERS_KEPT)
def parse_filter(text: str) -> Filter:
    """Parse a filter; in a thread, unless that is known to have been done: the import of this
    module and the patterns of a long filter take more than 5 ms. FilterError."""
    if len(text) > MAX_CHARS:
        raise FilterError(f"it has {len(text)} characters, and at most {MAX_CHARS} are allowed")
    return Filter(text, *_Parser(text).parse())


class _Parser:
    """Recursive descent: each method reads a rule of the grammar, and returns its test and what is
    known of its matches."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[int, str]] = []  # position, text; strings with their quotes
        self._at = 0
        self._depth = self._comparisons = 0
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                rest = text[at:].lstrip()
                at = len(text) - len(rest) + 1
                raise FilterError(f"unexpected {rest.rstrip()[:20]!r} at character {at}")
            self._tokens.append(
                (found.start(found.lastindex or 0) + 1, found[found.lastindex or 0])
            )
            at = found.end()
        self._end = end + 1

    def parse(self) -> tuple[Test, FilterHints]:
        parsed = self._any()
        if self._at < len(self._tokens):
            raise self._error_at("'and', 'or' or the end")
        return parsed

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _takes(self, token: str) -> bool:
        taken = self._peek() == token
        self._at += taken
        return taken

    def _need(self, token: str) -> None:
        if not self._takes(token):
            raise self._error_at(f"{token!r}")

    def _error_at(self, wanted: str) -> FilterError:
        if self._at >= len(self._tokens):
            return FilterError(f"it ends at character {self._end}, where {wanted} is expected")
        at, token = self._tokens[self._at]
        return FilterError(f"unexpected {token[:20]!r} at character {at}, {wanted} is expected")

    def _any(self) -> tuple[Test, FilterHints]:
        test, hints = self._all()
        tests = [test]
        while self._takes("or"):
            test, more = self._all()
            tests.append(test)
            hints = hints.either(more)
        return _first_true(tests), hints

    def _all(self) -> tuple[Test, FilterHints]:
        test, hints = self._negation()
        tests = [test]
        while self._takes("and"):
            test, more = self._negation()
            tests.append(test)
            hints = hints.both(more)
        return _all_true(tests), hints

    def _negation(self) -> tuple[Test, FilterHints]:
        if self._peek() not in ("not", "("):
            return self._comparison()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FilterError(f"it is nested more than {MAX_DEPTH} deep")
        if self._next() == "not":
            test, hints = _negate(self._negation()[0]), FilterHints()
        else:
            test, hints = self._any()
            self._need(")")
        self._depth -= 1
        return test, hints

    def _comparison(self) -> tuple[Test, FilterHints]:
        name, read, convert = self._operand()
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise FilterError(f"it has more than {MAX_COMPARISONS} comparisons")
        operator = self._peek()
        if operator == "in":
            self._at += 1
            self._need("(")
            wanted = [convert(self._literal())]
            while self._takes(","):
                wanted.append(convert(self._literal()))
            self._need(")")
        elif operator == "startswith":
            self._at += 1
            return _starts(read, convert(self._string())), FilterHints()
        elif operator in ("==", "!=", "<", "<=", ">", ">="):
            self._at += 1
            wanted = [convert(self._literal())]
        else:
            raise self._error_at("a comparison, 'in' or 'startswith'")
        return _compare(operator, read, wanted), _hints_of(name, operator, wanted)

    def _operand(self) -> tuple[str | tuple[str, ...], Read, Callable[[Literal], Literal]]:
        """Return what is read, how, and the conversion of literals that are compared with it."""
        name = self._peek()
        if name not in ("key", "timestamp", "header", "value"):
            raise self._error_at("key, timestamp, header('name') or value")
        self._at += 1
        if name == "key":
            return name, Row.key, self._as_bytes
        if name == "timestamp":
            return name, Row.timestamp, self._as_time
        if name == "header":
            self._need("(")
            header = self._string()
            self._need(")")
            return ("header", header), lambda row: row.header(header), self._as_bytes
        path: list[str] = []
        while self._peek() in (".", "["):
            if self._next() == "[":
                path.append(self._string())
                self._need("]")
            elif re.match("[A-Za-z_]", self._peek()):
                path.append(self._next())
            else:
                raise self._error_at("the name of a field")
        if not path:
            return name, Row.value, self._as_bytes
        field = tuple(path)
        return ("field", *path), lambda row: row.field(field), lambda literal: literal

    def _string(self) -> str:
        if not self._peek().startswith("'"):
            raise self._error_at("a string in single quotes")
        return self._next()[1:-1].replace("''", "'")

    def _literal(self) -> Literal:
        token = self._peek()
        if token.startswith("'"):
            return self._string()
        if token in _WORDS:
            self._at += 1
            return _WORDS[token]
        if not re.match("-?[0-9]", token):
            raise self._error_at("a string in single quotes, a number, true, false or null")
        try:
            number = float(token) if re.search("[.eE]", token) else int(token)
        except ValueError:  # more digits than Python takes
            raise self._error_at("a shorter number") from None
        self._at += 1
        return number

    def _as_bytes(self, literal: Literal) -> Literal:
        if literal is None:
            return None
        if not isinstance(literal, str):
            at = self._tokens[self._at - 1][0]
            raise FilterError(f"at character {at} a string in single quotes or null is expected")
        return literal.encode()

    def _as_time(self, literal: Literal) -> Literal:
        at = self._tokens[self._at - 1][0]
        if isinstance(literal, str):
            try:
                time = datetime.fromisoformat(literal)
            except ValueError:
                raise FilterError(f"{literal[:40]!r} at character {at} is no time") from None
            time = time if time.tzinfo else time.replace(tzinfo=UTC)
            return int(time.timestamp() * 1000)
        if isinstance(literal, bool) or not isinstance(literal, int):
            raise FilterError(f"at character {at} a time or whole milliseconds are expected")
        return literal


def _all_true(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    return lambda row: all(test(row) for test in tests)


def _first_true(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    return lambda row: any(test(row) for test in tests)


def _negate(test: Test) -> Test:
    return lambda row: not test(row)


def _starts(read: Read, prefix: Literal) -> Test:
    if isinstance(prefix, bytes):
        return lambda row: isinstance(found := read(row), bytes) and found.startswith(prefix)
    if not isinstance(prefix, str):
        raise FilterError("a timestamp does not start with a string")
    return lambda row: isinstance(found := read(row), str) and found.startswith(prefix)


def _equal(found: Literal, wanted: Literal) -> bool:
    # In Python True == 1.
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)


def _have_order(found: Literal, wanted: Literal) -> bool:
    """Return whether two values have an order."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return False
    if isinstance(wanted, (int, float)):
        return isinstance(found, (int, float))
    return isinstance(found, (str, bytes)) and type(found) is type(wanted)


def _compare(operator: str, read: Read, literals: list[Literal]) -> Test:
    wanted = literals[0]
    if operator == "in":
        some = {(isinstance(each, bool), each) for each in literals}
        return lambda row: (isinstance(found := read(row), bool), found) in some
    if operator == "==":
        return lambda row: _equal(read(row), wanted)
    if operator == "!=":
        return lambda row: not _equal(read(row), wanted)
    holds: Callable[[Literal, Literal], bool] = {
        "<": lambda one, other: one < other,
        "<=": lambda one, other: one <= other,
        ">": lambda one, other: one > other,
        ">=": lambda one, other: one >= other,
    }[operator]
    return lambda row: _have_order(found := read(row), wanted) and holds(found, wanted)


def _hints_of(name: str | tuple[str, ...], operator: str, wanted: list[Literal]) -> FilterHints:
    """Return what is known of the matches of a comparison."""
    if name == "timestamp":
        if operator in (">", ">=", "=="):
            (since,) = wanted
            if isinstance(since, int):
                return FilterHints(since_ms=since + (operator == ">"))
        return FilterHints()
    if operator not in ("==", "in") or None in wanted:
        return FilterHints()
    if not isinstance(name, str) and name[0] == "field":
        return FilterHints(needles=_json_needles(name[-1], wanted))
    literals = frozenset(each for each in wanted if isinstance(each, bytes))
    if name == "key":
        return FilterHints(keys=literals, needles=frozenset(map(_with_length, literals)))
    if isinstance(name, tuple):
        front = _with_length(name[1].encode())
        return FilterHints(needles=frozenset(front + _with_length(each) for each in literals))
    return FilterHints(needles=literals if b"" not in literals else None)


def _json_needles(name: str, wanted: list[Literal]) -> frozenset[Needle] | None:
    """Return what JSON has in which a field has one of some values; None if that is not known."""
    values: list[str] = []
    for each in wanted:
        if isinstance(each, float):
            return None
        if isinstance(each, int) and not isinstance(each, bool):
            # The number as it is, or any with a fraction or an exponent, which may be equal.
            values += [f"{each or '-?0'}(?![0-9])", "-?[0-9]+[.eE]"]
        else:
            values.append(re.escape(json.dumps(each, ensure_ascii=False)))
    text = rf"{re.escape(json.dumps(name, ensure_ascii=False))}\s*:\s*(?:{'|'.join(values)})"
    # Names and strings are as they are, or have an escape.
    return frozenset([re.compile(text.encode()), b"\\"])


def _with_length(field: bytes) -> bytes:
    """Return a field as a record has it, with its length."""
    out = bytearray()
    put_varint(out, len(field))
    return bytes(out) + field
