"""Ownership of a bucket: an object `owner` with an epoch, changed by conditional PUTs only.

A broker claims the prefix at its start by raising the epoch. If it later finds a newer owner, it
stops uploading and deleting, logs that, and continues to serve clients.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from kafkawire.log.io.ports import Env
from kafkawire.manifest.keys import OWNER
from kafkawire.manifest.sealed_json import seal, unseal
from kafkawire.metadata.store import BrokerSuperseded
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, Refused, StoreError
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

FORMAT = 2
"""Format 1 has no checksum."""
_START = b'{"format": '
MAX_CLAIMS = 10
"""Attempts to claim while other brokers claim, too; after that the caller tries again later."""
NONCE_BYTES = 16


class OwnedByOther(Refused):
    """This broker must not write to the bucket; the message is one sentence for the operator."""

    def __init__(self, text: str) -> None:
        super().__init__("OwnedByOther", text)


class DamagedOwner(StoreError):
    """The object `owner` was written by a broker and has other bytes now: it does not say who owns
    the tier. `data` and `etag`: of the object."""

    def __init__(self, text: str, data: bytes) -> None:
        super().__init__("DamagedOwner", text)
        self.data = data
        self.etag = ""


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The object `owner`, JSON with a checksum."""

    cluster_id: str
    node_id: int
    epoch: int
    nonce: str
    claimed_ms: int

    def pack(self) -> bytes:
        return seal(json.dumps({"format": FORMAT, **asdict(self)}))

    @classmethod
    def unpack(cls, data: bytes) -> OwnerRecord:
        """Parse stored bytes. Raises OwnedByOther for a version or a file that this program does
        not understand, which must not be overwritten, and DamagedOwner."""
        try:
            says = unseal(data, f"the object {OWNER!r} of the tier", FORMAT)
            if says["format"] > FORMAT:
                raise OwnedByOther(
                    f"the object {OWNER!r} of the tier has format {says['format']}, this kafkawire "
                    f"reads up to {FORMAT}: start the newer version that wrote it"
                )
            return cls(
                str(says["cluster_id"]), int(says["node_id"]), int(says["epoch"]),
                str(says["nonce"]), int(says["claimed_ms"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as failure:  # FormatError is a ValueError
            if _is_damaged(data):
                raise DamagedOwner(str(failure), data) from None
            raise OwnedByOther(
                f"the object {OWNER!r} of the tier is not what kafkawire writes: remove it if this "
                "broker is the only one that uses the tier"
            ) from None


def _is_damaged(data: bytes) -> bool:
    """Return whether bytes that are no owner were one, and are not something of another program."""
    # An empty object, or a block of zeros, has nothing that could be overwritten.
    if not data.strip(b"\0") or any(b'"%s"' % name in data for name in (b"claimed_ms", b"crc")):
        return True
    # The beginning of an owner. A complete object that begins like one is that of someone else.
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return data[: len(_START)] == _START[: len(data)]
    return False


async def read_owner(store: ObjectStore) -> tuple[OwnerRecord, str] | None:
    """Read the owner of a tier and the ETag of its object; None if it is not claimed. Raises
    StoreError, OwnedByOther and DamagedOwner among them."""
    try:
        data, etag = await store.get(OWNER)
    except NoSuchObject:
        return None
    try:
        return OwnerRecord.unpack(data), etag
    except DamagedOwner as damage:
        damage.etag = etag
        raise


async def trust_start() -> None:
    """Check nothing: no other process can be started as this broker."""


class Owner:
    """One broker's claim. `epoch` is 0 before the claim; `check_current` raises BrokerSuperseded
    if SQL has a later start of this broker."""

    def __init__(
        self,
        env: Env,
        store: ObjectStore,
        cluster_id: str,
        node_id: int,
        check_current: Callable[[], Awaitable[None]] = trust_start,
    ) -> None:
        self._env = env
        self._store = store
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._check_current = check_current
        self._nonce = env.random.randbytes(NONCE_BYTES).hex()
        self.epoch = 0

    async def claim(self) -> int:
        """Become the owner and return the epoch. Another call verifies that the claim is still
        valid.

        Raises OwnedByOther if the tier belongs to another cluster, if another broker has claimed it
        since this one did, or if this broker was started again elsewhere. After other StoreErrors
        try again; the claim may have succeeded.
        """
        for _ in range(MAX_CLAIMS):
            try:
                found = await read_owner(self._store)
                record, etag = found if found is not None else (None, None)
            except DamagedOwner as damage:
                self._check_damaged(damage)
                record, etag = None, damage.etag
            # Its own claim: verified again, or the response to the PUT was lost.
            if record is not None and record.nonce == self._nonce:
                self.epoch = record.epoch
                return self.epoch
            if record is not None:
                self._check(record)
            # A process that could not reach the bucket may have a successor, whose claim it must
            # not replace. The owner was read before SQL: a claim after this check makes the
            # condition of the PUT fail.
            try:
                await self._check_current()
            except BrokerSuperseded as failure:
                raise OwnedByOther(str(failure)) from None
            before = record.epoch if record is not None else 0
            # A damaged object: above every epoch that the lost one can have.
            if record is None and etag is not None:
                before = self._env.clock.now_ms()
            epoch = max(self.epoch, before) + 1
            mine = self._record(epoch)
            try:
                if etag is None:
                    await self._store.put(OWNER, mine.pack(), if_absent=True)
                else:
                    await self._store.put(OWNER, mine.pack(), if_match=etag)
            # Another broker was faster, or this PUT succeeded and its retry failed: read it again.
            except ConditionFailed:
                continue
            if record is not None:
                logger.info("took over the tier of node %d, epoch %d", record.node_id, record.epoch)
            self.epoch = epoch
            return epoch
        raise StoreError("ConditionFailed", "another broker claims the tier at the same time")

    async def check(self) -> None:
        """Raise OwnedByOther if the tier belongs to another cluster, StoreError; claim nothing."""
        try:
            found = await read_owner(self._store)
        # A claim decides about it.
        except DamagedOwner:
            return
        if found is not None and found[0].nonce != self._nonce:
            self._check(found[0])

    async def verify(self) -> None:
        """Raise OwnedByOther if another broker is the owner, StoreError if that is unknown."""
        if self.epoch:
            await self.claim()

    def _record(self, epoch: int) -> OwnerRecord:
        now_ms = self._env.clock.now_ms()
        return OwnerRecord(self._cluster_id, self._node_id, epoch, self._nonce, now_ms)

    def _check_damaged(self, damage: DamagedOwner) -> None:
        """Raise the damage if another broker may have claimed the tier since this one did."""
        # A start takes over whatever is there: the tier is known to be this broker's.
        if self.epoch and self._nonce.encode() not in damage.data:
            raise damage
        logger.warning("%s: writing it again", damage.text)

    def _check(self, record: OwnerRecord) -> None:
        """Raise OwnedByOther unless this owner may be replaced."""
        if record.cluster_id != self._cluster_id:
            raise OwnedByOther(
                f"the tier belongs to the cluster {record.cluster_id}, this is "
                f"{self._cluster_id}: give this broker another prefix, or bring that cluster "
                "back into an empty data folder with `kafkawire restore TIER`"
            )
        # At a start the claim of an earlier process is replaced. Later this is another broker with
        # the same cluster id, usually a copy of this one.
        if self.epoch:
            raise OwnedByOther(
                f"the tier was claimed by node {record.node_id} in epoch {record.epoch}, after "
                f"this broker did in epoch {self.epoch}: stop one of the two, then restart this one"
            )
