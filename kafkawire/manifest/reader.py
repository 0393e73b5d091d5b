"""Read the manifest of a bucket: `current`, the snapshot it names, the deltas after it.

`current` is JSON: {"format": 2, "snapshot": sequence, "obsolete": [...], "crc": text}, of format 1
without the checksum. `obsolete` is for the owner of the bucket: folded files that will be removed.
Pure: the caller fetches objects.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.fold import fold
from kafkawire.manifest.format import unpack
from kafkawire.manifest.keys import CURRENT, delta_key, snapshot_key
from kafkawire.manifest.sealed_json import seal, unseal
from kafkawire.manifest.state import Delta, Snapshot

CURRENT_FORMAT = 2
TRIES = 10
"""Attempts when folds interfere, each an hour apart; it also ends the search for an object that is
lost."""

Fetch = Generator[str, "bytes | None", Manifest]


class NoManifest(LookupError):
    """The bucket has no `manifest/current`: nothing was ever uploaded, or it is lost."""


class LostManifest(LookupError):
    """`manifest/current` names a missing snapshot."""


@dataclass(frozen=True, slots=True)
class Obsolete:
    """Files made obsolete by a fold: a snapshot, and the deltas `first` to `last`; and the time."""

    snapshot: int
    first: int
    last: int
    since_ms: int

    def keys(self) -> list[str]:
        deltas = [delta_key(n) for n in range(self.first, self.last + 1)]
        return [*deltas, snapshot_key(self.snapshot)]


@dataclass(frozen=True, slots=True)
class Current:
    """The current snapshot, and obsolete files that are kept for readers of the previous one."""

    snapshot: int
    obsolete: Sequence[Obsolete] = field(default_factory=tuple)


def pack_current(current: Current) -> bytes:
    obsolete = [
        {"snapshot": o.snapshot, "first": o.first, "last": o.last, "since_ms": o.since_ms}
        for o in current.obsolete
    ]
    says = {"format": CURRENT_FORMAT, "snapshot": current.snapshot, "obsolete": obsolete}
    return seal(json.dumps(says))


def unpack_current(data: bytes) -> Current:
    """Decode `manifest/current`. Raises FormatError if it is malformed, NewerFormatError if a newer
    program wrote it."""
    try:
        says = unseal(data, "manifest/current", CURRENT_FORMAT)
        if says["format"] > CURRENT_FORMAT:
            raise NewerFormatError(
                f"manifest/current has format {says['format']}, this kafkawire reads up to "
                f"{CURRENT_FORMAT}: start the newer version that wrote it"
            )
        obsolete = tuple(
            Obsolete(*[_natural(each[name]) for name in ("snapshot", "first", "last", "since_ms")])
            for each in says.get("obsolete", [])
        )
        return Current(_natural(says["snapshot"]), obsolete)
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError("manifest/current is not what kafkawire writes") from None


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value


def read_manifest(get: Callable[[str], bytes]) -> Manifest:
    """Read the current manifest. `get` returns an object by its key and raises LookupError or
    FileNotFoundError if it is missing; its other errors are passed on.

    Raises NoManifest, LostManifest, FormatError (which names the object).
    """
    return _drive_steps(_steps(), get)


def refresh_manifest(known: Manifest, get: Callable[[str], bytes]) -> Manifest:
    """Return the current manifest, given an older one: only newer deltas are read, if they still
    exist. Returns `known` itself if nothing is new. Raises the same errors as `read_manifest`."""
    return _drive_steps(_steps(known), get)


def _drive_steps(steps: Fetch, get: Callable[[str], bytes]) -> Manifest:
    key = next(steps)
    while True:
        data: bytes | None
        try:
            data = get(key)
        except (LookupError, FileNotFoundError):
            data = None
        try:
            key = steps.send(data)
        except StopIteration as done:
            return _manifest(done)


async def read_manifest_async(get: Callable[[str], Awaitable[bytes]]) -> Manifest:
    """Like `read_manifest`, with an awaitable `get`."""
    steps = _steps()
    key = next(steps)
    while True:
        data: bytes | None
        try:
            data = await get(key)
        except (LookupError, FileNotFoundError):
            data = None
        try:
            key = steps.send(data)
        except StopIteration as done:
            return _manifest(done)


def _manifest(done: StopIteration) -> Manifest:
    manifest: Manifest = done.value
    return manifest


def _steps(known: Manifest | None = None) -> Fetch:
    """Yield keys, receive their bytes (None: missing), return the manifest."""
    # A reader polls: usually there are a few deltas since, and the snapshot need not be read.
    if known is not None:
        deltas = yield from _deltas(known.sequence)
        if (yield from _still(known.sequence + len(deltas))):
            return Manifest(fold(known.state, deltas)) if deltas else known
    seen = -1
    for _ in range(TRIES):
        data = yield CURRENT
        if data is None:
            raise NoManifest("there is no manifest/current")
        current = unpack_current(data)
        key = snapshot_key(current.snapshot)
        data = yield key
        # Folded and removed since `current` was read, which then names a newer one. If it names the
        # same one again, that is lost.
        if data is None:
            if current.snapshot == seen:
                break
            seen = current.snapshot
            continue
        snapshot = read_object(key, data)
        if not isinstance(snapshot, Snapshot):
            raise FormatError(f"{key} is a delta")
        deltas = yield from _deltas(current.snapshot)
        if (yield from _still(current.snapshot + len(deltas))):
            return Manifest(fold(snapshot, deltas))
    raise LostManifest(f"{key} is not there, though manifest/current speaks of it")


def _deltas(sequence: int) -> Generator[str, bytes | None, list[Delta]]:
    # Their numbers have no gaps, so no listing is needed.
    deltas: list[Delta] = []
    while True:
        key = delta_key(sequence + len(deltas) + 1)
        data = yield key
        if data is None:
            return deltas
        deltas.append(read_object(key, data))


def _still(sequence: int) -> Generator[str, bytes | None, bool]:
    """Return whether nothing beyond a sequence number was folded."""
    # Otherwise the delta that ended the search may have been folded and removed.
    data = yield CURRENT
    return data is not None and unpack_current(data).snapshot <= sequence


def read_object(key: str, data: bytes | memoryview) -> Delta:
    """Decode a delta or snapshot, and check it against its key, which errors name."""
    try:
        content = unpack(data)
    except FormatError as failure:
        raise type(failure)(f"{key} cannot be read: {failure}") from None
    number = int(key.rpartition("-")[2])
    # A valid file, copied to another key.
    if content.sequence != number:
        raise FormatError(f"{key} says it has sequence number {content.sequence}")
    return content
