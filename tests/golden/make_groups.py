"""Write groups-v1.snapshot and groups-v2.snapshot, group snapshots without and with pending
offsets, and groups-v3.snapshot, which has a leader epoch, too.

Run once, for a new version: `python -m tests.golden.make_groups` from the root. A golden file is
never written again, because it is what users have on their disks; the files of earlier versions
stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kafkawire.coordination import snapshot
from kafkawire.coordination.snapshot import Contents, Pair, PendingPair, Term
from kafkawire.groups.model.records import GroupRecord, Offset, OffsetRecord, Record, encode_record
from kafkawire.groups.snapshot import group_snapshot
from kafkawire.messages.stored import GroupMetadataValue, MemberMetadata
from tests.kit.groups.log import FakeFs

HERE = Path(__file__).parent
PLACE = group_snapshot("/groups", b"t" * 16, 0)
NEXT_OFFSET = 1234
MEMBER = MemberMetadata(
    member_id="m-1",
    group_instance_id="i",
    client_id="c",
    client_host="/h",
    rebalance_timeout=20_000,
    session_timeout=10_000,
    subscription=b"sub",
    assignment=b"all",
)
RECORDS: tuple[Record, ...] = (
    GroupRecord(
        "g",
        GroupMetadataValue(
            protocol_type="consumer",
            generation=4,
            protocol="range",
            leader="m-1",
            current_state_timestamp=1_700_000_000_000,
            members=[MEMBER],
        ),
    ),
    OffsetRecord("g", "t", 0, Offset(42, 3, "né", 1_700_000_000_001)),
    OffsetRecord("s", "u", 7, Offset(9, -1, "", 1_700_000_000_002, 1_800_000_000_000)),
)
PENDING = (
    (4001, False, OffsetRecord("g", "t", 0, Offset(50, 3, "p", 1_700_000_000_003))),
    (4002, True, OffsetRecord("g", "t", 0, Offset(40, -1, "", 1_700_000_000_004))),
    (4002, False, OffsetRecord("only", "u", 1, Offset(7, 0, "", 1_700_000_000_005))),
)


def pair(record: Record) -> Pair:
    """Key and value of a record that is not a tombstone."""
    key, value = encode_record(record)
    assert value is not None
    return key, value


TERM = Term(3, 1_700_000_000_006)


def packed(version: int) -> bytes:
    """The bytes of a snapshot."""
    fs: Any = FakeFs()
    pending = [PendingPair(producer, late, *pair(record)) for producer, late, record in PENDING]
    pairs = [pair(record) for record in RECORDS]
    contents = Contents(NEXT_OFFSET, pairs, pending if version > 1 else [])
    snapshot.write(fs, PLACE, contents._replace(term=TERM) if version > 2 else contents)
    return bytes(fs.files[PLACE.path])


if __name__ == "__main__":
    for version in (1, 2, 3):
        file = HERE / f"groups-v{version}.snapshot"
        if not file.exists():
            file.write_bytes(packed(version))
