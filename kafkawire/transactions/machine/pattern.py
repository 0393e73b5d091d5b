"""Patterns of transactional ids, as ListTransactions 2 has them: the syntax of RE2, whole matches.

Kafka takes RE2J for them, because its time is linear in the text whatever the pattern; Python's
`re` would let one request stop the event loop for hours. This compiles the same syntax to a
nondeterministic automaton and follows all its states at once. Not done: scripts (`\\p{Greek}`),
nested classes (`&&`), which RE2J does not have either. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from kafkawire.transactions.machine.pattern_syntax import (
    Alternatives,
    Assertion,
    CharTest,
    Node,
    PatternError,
    Repetition,
    Sequence,
    is_word,
    parse,
)

__all__ = ["IdPattern", "PatternError"]

MAX_STATES = 2_000
"""States of an automaton: `x{1000}` twice, more than any pattern of names. A character of the text
takes at most as many steps."""
MAX_COMPILED = 5_000
"""Parts that are compiled, with repetitions: a few milliseconds."""
STEPS_AT_ONCE = 2_000
"""Steps between two chances for other work, about half a millisecond."""

_TEST, _SPLIT, _ASSERT, _MATCH = range(4)


@dataclass(slots=True)
class _State:
    """One state. `next` are states that follow: after a character that passes `test`, at once
    (split), or at once where `assertion` holds."""

    kind: int
    next: list[int]
    test: CharTest | None = None
    assertion: str = ""


class IdPattern:
    """A compiled pattern. Raises PatternError, whose text is a sentence for people."""

    def __init__(self, pattern: str) -> None:
        self._states: list[_State] = []
        self._compiled = 0
        match = self._add(_State(_MATCH, []))
        self._first = self._compile(parse(pattern), match)
        self._chars_at_once = max(1, STEPS_AT_ONCE // len(self._states))

    def matches(self, text: str) -> Generator[None, None, bool]:
        """Return whether the whole text matches; yields between portions of work."""
        current = self._closure([self._first], "", text[:1])
        for at, char in enumerate(text):
            after = [
                state.next[0]
                for number in current
                if (state := self._states[number]).test is not None and state.test(char)
            ]
            current = self._closure(after, char, text[at + 1 : at + 2])
            if not current:
                return False
            if at % self._chars_at_once == self._chars_at_once - 1:
                yield None
        return any(self._states[number].kind == _MATCH for number in current)

    def _closure(self, states: list[int], before: str, after: str) -> set[int]:
        """States that wait for a character, or match, without reading one."""
        found: set[int] = set()
        todo = list(states)
        while todo:
            number = todo.pop()
            if number in found:
                continue
            found.add(number)
            state = self._states[number]
            if state.kind == _SPLIT or (
                state.kind == _ASSERT and _holds(state.assertion, before, after)
            ):
                todo += state.next
        return found

    # -- compiling ------------------------------------------------------------------------

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise PatternError("The pattern is too large.")
        self._states.append(state)
        return len(self._states) - 1

    def _compile(self, node: Node, then: int) -> int:
        """The state that begins `node`, after which `then` follows."""
        self._compiled += 1  # parts without states, repeated often enough, take time too
        if self._compiled > MAX_COMPILED:
            raise PatternError("The pattern is too large.")
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                then = self._compile(part, then)
            return then
        if isinstance(node, Alternatives):
            return self._add(_State(_SPLIT, [self._compile(part, then) for part in node.parts]))
        if isinstance(node, Assertion):
            return self._add(_State(_ASSERT, [then], assertion=node.kind))
        if isinstance(node, Repetition):
            return self._repeat(node, then)
        return self._add(_State(_TEST, [then], test=node))

    def _repeat(self, node: Repetition, then: int) -> int:
        if node.most is None:
            loop = self._add(_State(_SPLIT, [then]))
            self._states[loop].next.append(self._compile(node.part, loop))
            then = loop
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self._add(_State(_SPLIT, [end, self._compile(node.part, then)]))
        for _ in range(node.least):
            then = self._compile(node.part, then)
        return then


def _holds(kind: str, before: str, after: str) -> bool:
    return _ASSERTIONS[kind](before, after)


_ASSERTIONS: dict[str, Callable[[str, str], bool]] = {
    "text begin": lambda before, after: not before,
    "text end": lambda before, after: not after,
    "line begin": lambda before, after: before in ("", "\n"),
    "line end": lambda before, after: after in ("", "\n"),
    "word border": lambda before, after: is_word(before) != is_word(after),
    "no word border": lambda before, after: is_word(before) == is_word(after),
}
