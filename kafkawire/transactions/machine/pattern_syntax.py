"""The syntax of RE2 as a tree: what kafkawire.transactions.machine.pattern compiles. Pure."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

CharTest = Callable[[str], bool]

MAX_REPEAT = 1_000
"""As in RE2."""
MAX_DEPTH = 100
"""Groups within groups; RE2 has 1000, but this parser is recursive."""

_WORD = frozenset(string.ascii_letters + string.digits + "_")
_DIGITS = frozenset(string.digits)
_SPACES = frozenset("\t\n\f\r ")
_CLASSES = {"d": _DIGITS, "s": _SPACES, "w": _WORD}
_POSIX = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset("\t "),
    "cntrl": frozenset([*map(chr, range(32)), "\x7f"]),
    "digit": _DIGITS,
    "graph": frozenset(map(chr, range(33, 127))),
    "lower": frozenset(string.ascii_lowercase),
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(string.punctuation),
    "space": frozenset("\t\n\v\f\r "),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CATEGORIES = frozenset("CLMNPSZ")


class PatternError(ValueError):
    """The pattern is not valid; the text is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts one after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Any one of the parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """A part `least` to `most` times; None: without end."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Assertion:
    """A place in the text, by name."""

    kind: str


Node = Sequence | Alternatives | Repetition | Assertion | CharTest


def is_word(char: str) -> bool:
    """True for a character of a word, in the sense of `\\w`."""
    return char in _WORD


def parse(pattern: str) -> Node:
    """The tree of a pattern. Raises PatternError."""
    parser = _Parser(pattern)
    tree = parser.alternatives()
    if parser.more():
        raise PatternError(f"The pattern has a ) without ( at {parser.at}.")
    return tree


class _Parser:
    """Recursive descent over one pattern. `flags` are those of `(?ims)` that are on."""

    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.depth = 0
        self.flags: frozenset[str] = frozenset()

    def more(self) -> bool:
        return self.at < len(self.text)

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        if not self.more():
            raise PatternError("The pattern ends too early.")
        self.at += 1
        return self.text[self.at - 1]

    def accept(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        if found:
            self.at += len(text)
        return found

    # -- structure ------------------------------------------------------------------------

    def alternatives(self) -> Node:
        parts = [self.sequence()]
        while self.accept("|"):
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.more() and self.peek() not in "|)":
            if self.accept("\\Q"):
                quoted = [self.literal(char) for char in self._quoted()]
                if quoted:
                    parts += [*quoted[:-1], self.repeated(quoted[-1])]
                continue
            part = self.item()
            if part is not None:
                parts.append(self.repeated(part))
        return Sequence(tuple(parts))

    def _quoted(self) -> str:
        end = self.text.find("\\E", self.at)
        start, stop = self.at, len(self.text) if end < 0 else end
        self.at = stop if end < 0 else stop + 2
        return self.text[start:stop]

    def repeated(self, part: Node) -> Node:
        start = self.at
        bounds = self._bounds()
        if bounds is None:
            return part
        self.accept("?")  # lazy: the same for a whole match
        if self._bounds() is not None:
            raise PatternError(f"The pattern repeats a repetition: {self.text[start : self.at]}")
        return Repetition(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.accept(sign):
                return bounds
        end = self.text.find("}", self.at)
        if self.peek() != "{" or end < 0:
            return None
        least, comma, most = self.text[self.at + 1 : end].partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            return None  # RE2 takes such a brace as it stands
        first = int(least)
        last = first if not comma else int(most) if most else None
        if max(first, last or 0) > MAX_REPEAT or (last is not None and first > last):
            raise PatternError(f"The pattern has a bad count: {self.text[self.at : end + 1]}")
        self.at = end + 1
        return first, last

    def item(self) -> Node | None:
        if self._bounds() is not None:
            raise PatternError("The pattern repeats nothing.")
        char = self.take()
        match char:
            case "(":
                return self.group()
            case "[":
                return self.char_class()
            case ".":
                return _anything if "s" in self.flags else _not_newline
            case "^":
                return Assertion("line begin" if "m" in self.flags else "text begin")
            case "$":
                return Assertion("line end" if "m" in self.flags else "text end")
            case "\\":
                return self.escape()
        return self.literal(char)

    def group(self) -> Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise PatternError("The pattern has too many groups within groups.")
        outer = self.flags
        if self.accept("?") and not self._named() and not self._flags():
            self.depth -= 1
            return None  # `(?i)`: for the rest of the group around it
        found = self.alternatives()
        if not self.accept(")"):
            raise PatternError("The pattern has a ( without ).")
        self.flags = outer
        self.depth -= 1
        return found

    def _named(self) -> bool:
        if not (self.accept("P<") or self.accept("<")):
            return False
        end = self.text.find(">", self.at)
        name = self.text[self.at : end]
        if end < 0 or not name or not all(map(is_word, name)):
            raise PatternError("The pattern has a bad name of a group.")
        self.at = end + 1
        return True

    def _flags(self) -> bool:
        """Take `i-s:` or `i)`; True if a group follows."""
        on = True
        flags = set(self.flags)
        while (char := self.take()) not in ":)":
            if char == "-" and on:
                on = False
            elif char not in "imsU":
                raise PatternError(f"The pattern has syntax that RE2 has not: (?{char}")
            elif on:
                flags.add(char)
            else:
                flags.discard(char)
        self.flags = frozenset(flags)
        return char == ":"

    # -- characters -----------------------------------------------------------------------

    def literal(self, char: str) -> CharTest:
        if "i" in self.flags:
            folded = char.casefold()
            return lambda read: read.casefold() == folded
        return char.__eq__

    def escape(self) -> Node:
        places = {"A": "text begin", "z": "text end", "b": "word border", "B": "no word border"}
        if self.peek() and self.peek() in places:
            return Assertion(places[self.take()])
        test = self.class_escape()
        return test if test is not None else self.literal(self.char_escape())

    def class_escape(self) -> CharTest | None:
        """`\\d`, `\\pL` and their opposites, after the backslash; None: it is a character."""
        name = self.peek()
        if name and name.lower() in _CLASSES:
            self.take()
            return _member(_CLASSES[name.lower()], negated=name.isupper())
        if not name or name not in "pP":
            return None
        self.take()
        category = self._category()
        negated = (name == "P") != category.startswith("^")
        category = category.removeprefix("^")
        if not category or category[0] not in _CATEGORIES or len(category) > 2:
            raise PatternError(f"The pattern has an unknown class: \\p{{{category}}}")
        return lambda read: unicodedata.category(read).startswith(category) != negated

    def _category(self) -> str:
        char = self.take()
        if char != "{":
            return char
        end = self.text.find("}", self.at)
        if end < 0:
            raise PatternError("The pattern has a class without }.")
        found = self.text[self.at : end]
        self.at = end + 1
        return found

    def char_escape(self) -> str:
        """One escaped character, after the backslash."""
        char = self.take()
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            return self._hexadecimal()
        if char in "01234567" and (char == "0" or self.peek() in tuple("01234567")):
            digits = char
            while len(digits) < 3 and self.peek() in tuple("01234567"):
                digits += self.take()
            return chr(int(digits, 8))
        if ord(char) < 128 and not is_word(char):
            return char
        raise PatternError(f"The pattern has an unknown escape: \\{char}")

    def _hexadecimal(self) -> str:
        if self.accept("{"):
            end = self.text.find("}", self.at)
            digits = self.text[self.at : max(end, self.at)]
            self.at = end + 1
        else:
            digits = self.text[self.at : self.at + 2]
            self.at += 2
            digits = digits if len(digits) == 2 else ""
        if not digits or len(digits) > 6 or not set(digits) <= set(string.hexdigits):
            raise PatternError("The pattern has a bad \\x.")
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise PatternError("The pattern has a bad \\x.")
        return chr(code)

    def char_class(self) -> CharTest:
        negated = self.accept("^")
        tests: list[CharTest] = []
        first = True
        while first or self.peek() != "]":
            if not self.more():
                raise PatternError("The pattern has a [ without ].")
            tests.append(self._class_part())
            first = False
        self.at += 1
        if "i" in self.flags:
            return lambda read: (
                any(test(each) for test in tests for each in {read, read.lower(), read.upper()})
                != negated
            )
        return lambda read: any(test(read) for test in tests) != negated

    def _class_part(self) -> CharTest:
        if self.accept("[:"):
            return self._posix()
        if self.accept("\\"):
            test = self.class_escape()
            if test is not None:
                return test
            low = self.char_escape()
        else:
            low = self.take()
        if self.peek() != "-" or self.text[self.at + 1 : self.at + 2] in ("]", ""):
            return low.__eq__
        self.at += 1
        high = self.char_escape() if self.accept("\\") else self.take()
        if high < low:
            raise PatternError(f"The pattern has a bad range: {low}-{high}")
        return lambda read: low <= read <= high

    def _posix(self) -> CharTest:
        end = self.text.find(":]", self.at)
        name = self.text[self.at : max(end, self.at)]
        negated = name.startswith("^")
        members = _POSIX.get(name.removeprefix("^"))
        if members is None:
            raise PatternError(f"The pattern has an unknown class: [:{name}:]")
        self.at = end + 2
        return _member(members, negated=negated)


def _is_number(text: str) -> bool:
    return 0 < len(text) <= 9 and text.isascii() and text.isdigit()


def _member(members: frozenset[str], *, negated: bool) -> CharTest:
    return lambda read: (read in members) != negated


def _anything(read: str) -> bool:
    return True


def _not_newline(read: str) -> bool:
    return read != "\n"
