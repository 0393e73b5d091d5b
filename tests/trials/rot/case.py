"""One case of the rot trial: a copy with one flipped bit, and how broker and fsck react."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tests.trials.context import Context
from tests.trials.flip.base import Base
from tests.trials.flip.case import Case, Seen
from tests.trials.flip.damage import Damage, Hit
from tests.trials.flip.kinds import Kind
from tests.trials.ledger import some
from tests.trials.link import Link, fetch
from tests.trials.reading import read_all
from tests.trials.records import Record, batches, records_of
from tests.trials.rot.base import RotBase
from tests.trials.rot.damage import Rot

DELIVERED_WITHIN_S = 40.0
"""An index that is made again is read from the log first, on a machine that does other things."""


@dataclass(slots=True)
class RotCase(Case):
    """A case of the flip trial whose damage is one bit."""

    rot: Rot | None = None

    def __str__(self) -> str:
        return f"{self.kind.name}: {self.rot}"

    def _apply(self) -> None:
        assert self.rot is not None
        self.rot.apply(self.base.folder)

    def _hit(self) -> Hit:
        assert self.rot is not None
        return self.rot.hit(self.pristine, self.kind)

    def _places(self, hit: Hit) -> set[tuple[str, int, int]]:
        """The partitions and offsets under which the damaged records were acknowledged."""
        extra = cast("RotBase", self.base).extra
        places = {
            (topic.name, 0, offset)
            for topic in extra.values()
            for offset, uid in topic.ledgers[0].acked.items()
            if uid in hit.uids
        }
        return places | Case._places(self, hit)

    async def _more(self, client: Link, seen: Seen, there: dict[str, tuple[bytes, int]]) -> None:
        """Check transactions, delayed records and the deleted topic."""
        base = cast("RotBase", self.base)
        if "gone" in there:
            seen.faults.append("the deleted topic is back")
        for name, topic in base.extra.items():
            if there.get(name) != (topic.id, topic.count):
                seen.faults.append(f"topic {name} is {there.get(name)}")
                return
        for name in ("txn", "later"):
            topic = base.extra[name]
            full = await read_all(client, name, topic.id, 0)
            seen.faults += full.trouble
            self._compare(seen, topic, 0, full)
        await self._transactions(client, seen)
        await self._delivered(client, seen)

    async def _transactions(self, client: Link, seen: Seen) -> None:
        """Read what is committed: each record once, none of an aborted transaction."""
        base = cast("RotBase", self.base)
        topic = base.extra["txn"]
        end = max(topic.ledgers[0].acked) + 1
        lost = seen.unreadable.get((topic.name, 0), set())
        found = [
            uid
            for uid in await read_committed(client, topic.id, end, lost)
            if topic.ledgers[0].at.get(uid, end) < end
        ]
        self.context.tried("committed records read", len(found))
        seen.faults += judge_transactions(base, found, {topic.ledgers[0].acked[at] for at in lost})

    async def _delivered(self, client: Link, seen: Seen) -> None:
        """Wait for the records that are due, and check all that are delivered."""
        base = cast("RotBase", self.base)
        topic, later = base.extra["orders"], base.extra["later"]
        lost = {
            later.ledgers[0].acked[offset] for offset in seen.unreadable.get((later.name, 0), set())
        }
        lost |= self._hit().uids
        end = time.monotonic() + DELIVERED_WITHIN_S
        while True:
            full = await read_all(client, topic.name, topic.id, 0)
            uids = {record.uid for record in full.records}
            if full.errors or full.trouble or base.due - lost <= uids or time.monotonic() > end:
                break
            await asyncio.sleep(0.2)
        seen.faults += full.trouble
        self.context.tried("delayed records read", len(full.records))
        if full.errors and not self._hit().uids & base.due:
            seen.faults.append(f"orders-0: refused at {some(full.errors)}")
        sent = later.ledgers[0].sent
        seen.faults += judge_delayed(
            base, sent, full.records, set() if full.errors else lost, bool(full.errors)
        )


def judge_transactions(base: RotBase, found: list[int], lost: set[int]) -> list[str]:
    """Return the faults of what a reader of committed records got."""
    faults = []
    if visible := base.aborted & set(found):
        faults.append(f"aborted records are read: ids {some(visible)}")
    if missing := base.committed - set(found) - lost:
        faults.append(f"committed records are not read: ids {some(missing)}")
    if len(set(found)) < len(found):
        faults.append("committed records are read twice")
    return faults


def judge_delayed(
    base: RotBase,
    sent: dict[int, tuple[bytes | None, int]],
    records: list[Record],
    lost: set[int],
    refused: bool = False,
) -> list[str]:
    """Return the faults of the delivered records. `lost`: ids that need not be delivered;
    `refused`: some of what was delivered cannot be read."""
    faults = []
    uids = [record.uid for record in records]
    for record in records:
        if sent.get(record.uid) != (record.key, record.digest):
            faults.append(f"a delayed record was delivered with other bytes: id {record.uid}")
    if early := base.never & set(uids):
        faults.append(f"delayed records are early by years: ids {some(early)}")
    if len(set(uids)) < len(uids):
        faults.append("delayed records are delivered twice")
    missing = base.due - set(uids) - lost
    if missing and not refused:
        faults.append(f"delayed records are not delivered: ids {some(missing)}")
    return faults


async def read_committed(client: Link, topic_id: bytes, end: int, lost: set[int]) -> list[int]:
    """The ids that a reader of committed records gets, as Kafka's consumer leaves out aborted
    ones."""
    uids: list[int] = []
    offset = 0
    while offset < end:
        if offset in lost:
            offset += 1
            continue
        row = await fetch(client, topic_id, 0, offset, isolation=1)
        if row.error_code or not row.records:
            offset += 1
            continue
        data = bytes(row.records)
        aborted = sorted(
            (each.first_offset, each.producer_id) for each in row.aborted_transactions or []
        )
        active: set[int] = set()
        for batch in batches(data):
            while aborted and aborted[0][0] <= batch.last_offset:
                active.add(aborted.pop(0)[1])
            if batch.control:
                active.discard(batch.producer_id)
            elif not (batch.transactional and batch.producer_id in active):
                uids += [each.uid for each in records_of(data, batch) if each.offset >= offset]
            offset = max(offset, batch.last_offset + 1)
    return uids


def case_of(
    context: Context, base: Base, pristine: Path, path: str, kind: Kind, rot: Rot
) -> RotCase:
    """A case of one flipped bit."""
    return RotCase(context, base, pristine, path, kind, Damage("flip", 0, 0, b""), rot)
