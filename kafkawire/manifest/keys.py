"""Names of the objects under a tier's prefix.

    owner                          the writer of the bucket (JSON;
    kafkawire.tiering.publishing.owner) manifest/current               the current snapshot (JSON;
    below) manifest/snapshot-<20 digits>  everything up to this sequence number manifest/delta-<20
    digits>     one round of changes segments/<uuid>.segment        a segment file, byte for byte;
    the uuid in 32 hex digits filters/current                which filter packs there are (JSON;
    kafkawire.manifest.packs) filters/pack-<20 digits>       a filter pack
    (kafkawire.codec.segment.filter_pack) conditional-put                stored by
    kafkawire.tiering.store.storage_check, empty log/<20 digits>/<20 digits>    a log object: the
    broker epoch and sequence number of its log (kafkawire.log.objects)

Sequence numbers are padded, so that a listing is sorted by them. Pure.
"""

from __future__ import annotations

OWNER = "owner"
CURRENT = "manifest/current"
SNAPSHOTS = "manifest/snapshot-"
DELTAS = "manifest/delta-"
SEGMENTS = "segments/"
FILTERS = "filters/"
PACK_LIST = "filters/current"
PACKS = "filters/pack-"
CONDITIONAL_PUT = "conditional-put"
LOGS = "log/"
SEQUENCE_DIGITS = 20
_SUFFIX = ".segment"


def snapshot_key(sequence: int) -> str:
    return f"{SNAPSHOTS}{sequence:0{SEQUENCE_DIGITS}}"


def delta_key(sequence: int) -> str:
    return f"{DELTAS}{sequence:0{SEQUENCE_DIGITS}}"


def segment_key(uuid: bytes) -> str:
    """Return the key of an object by its uuid (16 bytes)."""
    return f"{SEGMENTS}{uuid.hex()}{_SUFFIX}"


def segment_uuid(key: str) -> bytes | None:
    """Return the uuid in an object's key; None if it is not a segment's."""
    if not key.startswith(SEGMENTS) or not key.endswith(_SUFFIX):
        return None
    text = key[len(SEGMENTS) : -len(_SUFFIX)]
    if len(text) != 32 or text.strip("0123456789abcdef"):
        return None
    return bytes.fromhex(text)


def pack_key(number: int) -> str:
    return f"{PACKS}{number:0{SEQUENCE_DIGITS}}"


def pack_number(key: str) -> int | None:
    """Return the number in the key of a filter pack; None for another key."""
    return _number(key, PACKS)


def sequence_of(key: str) -> int | None:
    """Return the sequence number in the key of a delta or snapshot; None for another key."""
    found = _number(key, SNAPSHOTS)
    return _number(key, DELTAS) if found is None else found


def log_prefix(epoch: int) -> str:
    return f"{LOGS}{epoch:0{SEQUENCE_DIGITS}}/"


def log_object_key(epoch: int, sequence: int) -> str:
    return f"{log_prefix(epoch)}{sequence:0{SEQUENCE_DIGITS}}"


def parse_log_object_key(key: str) -> tuple[int, int] | None:
    """Return broker epoch and sequence number in the key of a log object; None for another key."""
    log, _, name = key.rpartition("/")
    epoch, sequence = _number(log, LOGS), _number(f"/{name}", "/")
    return None if epoch is None or sequence is None else (epoch, sequence)


def _number(key: str, prefix: str) -> int | None:
    text = key.removeprefix(prefix)
    if text != key and len(text) == SEQUENCE_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    return None
