"""Names in order, to find those under a prefix and those after it. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

CHUNK = 1_000
"""Names of a list before it is split: inserting one moves 8 KB at most."""
_LAST = "\U0010ffff"


class SortedNames:
    """Different names. A change moves one list of CHUNK names, not all 100,000 there may be."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self) -> None:
        self._chunks: list[list[str]] = []
        self._firsts: list[str] = []  # of each chunk

    def add(self, name: str) -> None:
        """Add a name that is not there."""
        if not self._chunks:
            self._chunks.append([name])
            self._firsts.append(name)
            return
        at = max(0, bisect_right(self._firsts, name) - 1)
        chunk = self._chunks[at]
        insort(chunk, name)
        self._firsts[at] = chunk[0]
        if len(chunk) > CHUNK:
            half = len(chunk) // 2
            self._chunks.insert(at + 1, chunk[half:])
            self._firsts.insert(at + 1, chunk[half])
            del chunk[half:]

    def remove(self, name: str) -> None:
        """Remove a name that is there."""
        at = bisect_right(self._firsts, name) - 1
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, name)]
        if chunk:
            self._firsts[at] = chunk[0]
        else:
            del self._chunks[at], self._firsts[at]

    def first(self) -> str | None:
        """Return the first name."""
        return self._firsts[0] if self._firsts else None

    def after(self, name: str) -> str | None:
        """Return the first name that is greater."""
        at = bisect_right(self._firsts, name) - 1
        if at >= 0:
            chunk = self._chunks[at]
            index = bisect_right(chunk, name)
            if index < len(chunk):
                return chunk[index]
        return self._firsts[at + 1] if at + 1 < len(self._firsts) else None

    def after_all_under(self, prefix: str, name: str) -> str | None:
        """Return the first name after `name`, of those with this prefix, that does not have it."""
        found = self.after(max(prefix + _LAST, name))
        while found is not None and found.startswith(prefix):
            found = self.after(found)
        return found

    def prefix_of(self, name: str) -> str | None:
        """Return the shortest one that a name begins with."""
        shortest = None
        upto = name
        while (found := self._last_up_to(upto)) is not None:
            if name.startswith(found):
                shortest = found
                if not found:
                    break
                upto = found[:-1]
            else:  # one that the name begins with is a beginning of `found`, too
                upto = _common(found, upto)
        return shortest

    def _last_up_to(self, name: str) -> str | None:
        at = bisect_right(self._firsts, name) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        return chunk[bisect_right(chunk, name) - 1]


def _common(a: str, b: str) -> str:
    """Return what both begin with."""
    for index, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return a[:index]
    return min(a, b, key=len)
