"""Reading the manifest of a bucket: `current`, the snapshot it names, the deltas after it.

`current` is JSON: {"format": 1, "snapshot": sequence, "obsolete": [...]}. `obsolete` is for the
owner of the bucket: what was folded into the snapshot, and will be removed. A reader whose delta or
snapshot is gone since it read `current` begins again: there is a newer one. Pure: a caller that
calls says how an object is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafkawire.codec.format_errors import FormatError, NewerFormatError
from kafkawire.manifest.contents import Manifest
from kafkawire.manifest.fold import fold
from kafkawire.manifest.format import unpack
from kafkawire.manifest.keys import CURRENT, delta_key, snapshot_key
from kafkawire.manifest.state import Delta, Snapshot

CURRENT_FORMAT = 1
TRIES = 10
"""How often a fold may come in between, each an hour's notice: a reader that slow has another
problem. Also ends the search where an object is lost for good."""

Fetch = Generator[str, "bytes | None", Manifest]


class NoManifest(LookupError):
    """The bucket has no `manifest/current`: nothing was ever uploaded there, or it is lost."""


class LostManifest(LookupError):
    """`manifest/current` names a snapshot that is not there."""


@dataclass(frozen=True, slots=True)
class Obsolete:
    """Files made superfluous by a compaction: a snapshot, and the deltas `first` to `last`; since
    when."""

    snapshot: int
    first: int
    last: int
    since_ms: int

    def keys(self) -> list[str]:
        """The names of these objects."""
        deltas = [delta_key(n) for n in range(self.first, self.last + 1)]
        return [*deltas, snapshot_key(self.snapshot)]


@dataclass(frozen=True, slots=True)
class Current:
    """Which snapshot to begin with, and what is there still for those who read the one before."""

    snapshot: int
    obsolete: Sequence[Obsolete] = field(default_factory=tuple)


def pack_current(current: Current) -> bytes:
    """The object `manifest/current`."""
    obsolete = [
        {"snapshot": o.snapshot, "first": o.first, "last": o.last, "since_ms": o.since_ms}
        for o in current.obsolete
    ]
    says = {"format": CURRENT_FORMAT, "snapshot": current.snapshot, "obsolete": obsolete}
    return json.dumps(says).encode() + b"\n"


def unpack_current(data: bytes) -> Current:
    """The other way. FormatError for anything else, NewerFormatError if a newer program wrote
    it."""
    try:
        says: Any = json.loads(data)
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
    except NewerFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError("manifest/current is not what kafkawire writes") from None


def _natural(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(value)
    return value


def read_manifest(get: Callable[[str], bytes]) -> Manifest:
    """The manifest as it is now. `get` returns an object by its key and raises LookupError or
    FileNotFoundError where there is none; what else it raises passes.

    Raises NoManifest, LostManifest, FormatError (its text names the object)."""
    return _driven(_steps(), get)


def refresh_manifest(known: Manifest, get: Callable[[str], bytes]) -> Manifest:
    """The manifest as it is now, given an older one: only the deltas since then are read where
    they are still there. `known` itself if nothing is new. As `read_manifest` for the rest."""
    return _driven(_steps(known), get)


def _driven(steps: Fetch, get: Callable[[str], bytes]) -> Manifest:
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
    """`read_manifest` for those who await what they get."""
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
    """Yield keys, is sent their bytes (None: not there), returns the manifest."""
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
    """Those after a sequence number."""
    deltas: list[Delta] = []
    while True:
        key = delta_key(sequence + len(deltas) + 1)
        data = yield key
        if data is None:
            return deltas
        deltas.append(read_object(key, data))


def _still(sequence: int) -> Generator[str, bytes | None, bool]:
    """Whether nothing is folded beyond a sequence number: that a delta is not there may mean that
    it was folded, and removed meanwhile."""
    data = yield CURRENT
    return data is not None and unpack_current(data).snapshot <= sequence


def read_object(key: str, data: bytes | memoryview) -> Delta:
    """A delta or snapshot; what is wrong with it names it, and it must be what its name says."""
    try:
        content = unpack(data)
    except FormatError as failure:
        raise type(failure)(f"{key} cannot be read: {failure}") from None
    number = int(key.rpartition("-")[2])
    if content.sequence != number:
        raise FormatError(f"{key} says it has sequence number {content.sequence}")
    return content
