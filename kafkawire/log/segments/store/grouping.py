"""Choose which partitions share a segment: pure decisions for the cutter and the merger.

A large share of a partition becomes a segment of its own. Small ones share one if they will be
treated alike: same cleanup policy, same tiering, about the same retention. So a hundred thousand
quiet partitions do not make a hundred thousand files, and a file does not outlive most of its
contents.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.codec.configs.settings import TopicConfig
from kafkawire.offsets.catalog.port import NEVER

LARGE_BYTES = 8 << 20
"""From this size on a partition gets a segment of its own: at most sixteen per journal."""


CLEANED, COMPACTED = "cleaned", "compact"


def retention_class(config: TopicConfig, *, cleaned: bool = False) -> str:
    """Return the settings that partitions of one segment have in common, as text for the row."""
    # A segment that the cleaner wrote has another class than one that was cut: this shows how far a
    # partition is clean.
    policy = "+".join(
        name
        for name, chosen in (
            (CLEANED, cleaned),
            (COMPACTED, config.cleanup_compact and not cleaned),
            ("delete", config.cleanup_delete),
        )
        if chosen
    )
    if not config.cleanup_delete or config.retention_ms < 0:
        kept = "ever"
    else:
        # Times that differ by less than a factor of two count as equal: otherwise quiet partitions
        # would not find others to share a file with.
        kept = f"2^{config.retention_ms.bit_length()}ms"
    location = "tiered" if config.copies else "local"
    return f"{policy or 'keep'}/{location}/{kept}"


def is_cleaned(kind: str) -> bool:
    return kind.startswith(CLEANED)


def is_tiered(kind: str) -> bool:
    """Return whether segments of a class are copied to the remote tier."""
    return "/tiered/" in kind


def least_retention_ms(kind: str) -> int:
    """Return the shortest `retention.ms` of topics in a class; NEVER if they are kept for ever."""
    kept = kind.rsplit("/", 1)[-1]
    if not (kept.startswith("2^") and kept.endswith("ms")):
        return NEVER
    bits = int(kept[2:-2])
    # The lower bound of the class.
    return 1 << (bits - 1) if bits else 0


def group(
    shares: Iterable[tuple[int, str, int]], bytes_at_most: int
) -> list[tuple[str, list[int]]]:
    """Assign shares (number, class, bytes), in the order of their numbers, to segments.

    Returns (class, numbers) for each; a shared one has at most `bytes_at_most`.
    """
    segments: list[tuple[str, list[int]]] = []
    open_ones: dict[str, tuple[list[int], int]] = {}
    for number, kind, size_bytes in shares:
        # Large: nothing is gained by sharing, and deletion of a topic would rewrite the others.
        if size_bytes >= LARGE_BYTES:
            segments.append((kind, [number]))
            continue
        numbers, filled = open_ones.get(kind, ([], 0))
        # A file of a class that is full gets no more.
        if not numbers or filled + size_bytes > bytes_at_most:
            numbers, filled = [], 0
            segments.append((kind, numbers))
        numbers.append(number)
        open_ones[kind] = numbers, filled + size_bytes
    return segments
