"""Ownership of a bucket: an object `owner` with an epoch, changed by conditional PUTs only.

A broker claims the prefix at its start by raising the epoch. If it later finds a newer owner, it
stops uploading and deleting, logs that, and continues to serve clients. A nonce in the object
identifies the broker's own claim when the response to the PUT was lost.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import Any

from kafkawire.log.io.ports import Env
from kafkawire.manifest.keys import OWNER
from kafkawire.objectstore.errors import ConditionFailed, NoSuchObject, Refused, StoreError
from kafkawire.tiering.store.port import ObjectStore

logger = logging.getLogger(__name__)

FORMAT = 1
MAX_CLAIMS = 10
"""Attempts to claim while other brokers claim, too; after that the caller tries again later."""
NONCE_BYTES = 16


class OwnedByOther(Refused):
    """This broker must not write to the bucket; the message is one sentence for the operator."""

    def __init__(self, text: str) -> None:
        super().__init__("OwnedByOther", text)


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """The object `owner`."""

    cluster_id: str
    node_id: int
    epoch: int
    nonce: str
    claimed_ms: int

    def pack(self) -> bytes:
        """Return the owner as stored bytes."""
        return json.dumps({"format": FORMAT, **asdict(self)}).encode() + b"\n"

    @classmethod
    def unpack(cls, data: bytes) -> OwnerRecord:
        """Parse stored bytes. Raises OwnedByOther for a version this program does not understand,
        which must not be overwritten."""
        try:
            says: Any = json.loads(data)
            if says["format"] > FORMAT:
                raise OwnedByOther(
                    f"the object {OWNER!r} of the tier has format {says['format']}, this kafkawire "
                    f"reads up to {FORMAT}: start the newer version that wrote it"
                )
            return cls(
                str(says["cluster_id"]), int(says["node_id"]), int(says["epoch"]),
                str(says["nonce"]), int(says["claimed_ms"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, RecursionError):
            raise OwnedByOther(
                f"the object {OWNER!r} of the tier is not what kafkawire writes: remove it if this "
                "broker is the only one that uses the tier"
            ) from None


async def read_owner(store: ObjectStore) -> tuple[OwnerRecord, str] | None:
    """Read the owner of a tier and the ETag of its object; None if it is not claimed. Raises
    StoreError."""
    try:
        data, etag = await store.get(OWNER)
    except NoSuchObject:
        return None
    return OwnerRecord.unpack(data), etag


class Owner:
    """One broker's claim. `epoch` is 0 before the claim."""

    def __init__(self, env: Env, store: ObjectStore, cluster_id: str, node_id: int) -> None:
        self._env = env
        self._store = store
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._nonce = env.random.randbytes(NONCE_BYTES).hex()
        self.epoch = 0

    async def claim(self) -> int:
        """Become the owner and return the epoch. Another call verifies that the claim is still
        valid.

        Raises OwnedByOther if the tier belongs to another cluster, or another broker has claimed it
        since this one did. After other StoreErrors try again; the claim may have succeeded.
        """
        for _ in range(MAX_CLAIMS):
            found = await self._read()
            record, etag = found if found is not None else (None, "")
            if record is not None and record.nonce == self._nonce:
                self.epoch = record.epoch
                return self.epoch
            if record is not None:
                self._check(record)
            epoch = max(self.epoch, record.epoch if record is not None else 0) + 1
            mine = self._record(epoch)
            try:
                if record is None:
                    await self._store.put(OWNER, mine.pack(), if_absent=True)
                else:
                    await self._store.put(OWNER, mine.pack(), if_match=etag)
            except ConditionFailed:
                continue
            if record is not None:
                logger.info("took over the tier of node %d, epoch %d", record.node_id, record.epoch)
            self.epoch = epoch
            return epoch
        raise StoreError("ConditionFailed", "another broker claims the tier at the same time")

    async def verify(self) -> None:
        """Raise OwnedByOther if another broker is the owner, StoreError if that cannot be
        determined."""
        if self.epoch:
            await self.claim()

    async def _read(self) -> tuple[OwnerRecord, str] | None:
        return await read_owner(self._store)

    def _record(self, epoch: int) -> OwnerRecord:
        now_ms = self._env.clock.now_ms()
        return OwnerRecord(self._cluster_id, self._node_id, epoch, self._nonce, now_ms)

    def _check(self, record: OwnerRecord) -> None:
        """Return whether this owner may be replaced."""
        if record.cluster_id != self._cluster_id:
            raise OwnedByOther(
                f"the tier belongs to the cluster {record.cluster_id}, this is "
                f"{self._cluster_id}: give this broker another prefix, or bring that cluster "
                "back into an empty data folder with `kafkawire tier restore`"
            )
        if self.epoch:
            raise OwnedByOther(
                f"the tier was claimed by node {record.node_id} in epoch {record.epoch}, after "
                f"this broker did in epoch {self.epoch}: stop one of the two, then restart this one"
            )
