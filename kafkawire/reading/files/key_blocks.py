"""The interface of an index of keys: which parts of segments may have records with given keys.

Readers that search by key pass the pieces of their plan through it before they read any. The index
is in key_index; without it every piece is read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from kafkawire.reading.files.locations import Place
from kafkawire.reading.model.source import Piece


class KeyBlocks(Protocol):
    """Chooses the blocks that may have a key. It may choose too many, never too few."""

    def narrowed(
        self, places: Sequence[Place], pieces: Sequence[Piece], keys: Collection[bytes]
    ) -> Sequence[Piece]:
        """Return the pieces, ascending as given, with `base` and `end` around the blocks that may
        have one of the keys: none for a piece without them, several for one with blocks far apart.

        A piece whose filters are absent or damaged is returned as it is. Called once per plan with
        all pieces, so that filters of many files can be read concurrently.
        """
