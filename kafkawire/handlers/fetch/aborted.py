"""The list of aborted transactions of an answer. Pure."""

from __future__ import annotations

from itertools import islice
from operator import lt

from kafkawire.codec.control import Aborted


def list_aborted(aborted: list[Aborted]) -> list[tuple[int, int]]:
    """Return (producer ID, first offset) of aborted transactions, each once, in the order of their
    markers. Where two parts of an answer know one, the segment's first offset is the true one."""
    lasts = [last for _, _, last in aborted]
    if all(map(lt, lasts, islice(lasts, 1, None))):  # of one part, as almost always
        return [(producer_id, first) for producer_id, first, _ in aborted]
    firsts: dict[tuple[int, int], int] = {}
    for producer_id, first, last in aborted:
        known = firsts.setdefault((last, producer_id), first)
        if first < known:
            firsts[last, producer_id] = first
    return [(producer_id, firsts[last, producer_id]) for last, producer_id in sorted(firsts)]
