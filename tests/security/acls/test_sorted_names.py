"""Names in order, compared with a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkawire.security.acls.index import CHUNK, SortedNames

names = st.text("ab\U0010ffff", max_size=5)


def made(of: set[str]) -> SortedNames:
    found = SortedNames()
    for name in of:
        found.add(name)
    return found


@given(st.sets(names, max_size=40), names, names)
def test_names_are_found(of: set[str], name: str, prefix: str) -> None:
    index, ordered = made(of), sorted(of)
    assert index.first() == next(iter(ordered), None)
    assert index.next_after(name) == next((each for each in ordered if each > name), None)
    begins = [each for each in ordered if name.startswith(each)]
    assert index.prefix_of(name) == min(begins, key=len, default=None)
    under = prefix + name
    rest = (each for each in ordered if each > under and not each.startswith(prefix))
    assert index.after_all_under(prefix, under) == next(rest, None)


def test_many_names_are_added_and_removed() -> None:
    of = {f"{number * 7919 % 5 * CHUNK:05}-{number}" for number in range(5 * CHUNK)}
    index = made(of)
    for gone in sorted(of)[::2]:
        index.remove(gone)
        of.discard(gone)
    found, name = [], index.first()
    while name is not None:
        found.append(name)
        name = index.next_after(name)
    assert found == sorted(of)
    for gone in of:
        index.remove(gone)
    assert index.first() is None
    assert index.next_after("") is None
