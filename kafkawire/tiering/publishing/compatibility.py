"""Check whether a broker may use a tier: it must belong to its cluster and have its objects.

Checked once, before a broker uses a URL for the first time. A tier that is known in SQL is attached
in the background, so an ordinary start does not wait for the bucket.
"""

from __future__ import annotations

import asyncio
import logging

from kafkawire.log.recovery.identity import IdentityError
from kafkawire.objectstore.errors import StoreError
from kafkawire.offsets.catalog.port import COPY_FINISHED, CURRENT, SegmentCatalog
from kafkawire.tiering.publishing.lost_objects import first_objects
from kafkawire.tiering.publishing.owner import DamagedOwner, OwnedByOther, OwnerRecord, read_owner
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.store_folder import StoreFolder
from kafkawire.tiering.store.tiers import folder_of, own_url

logger = logging.getLogger(__name__)

CHECK_S = 10.0
"""Maximum wait at start for the owner object of a tier that was not used before: time for a storage
process to start and for a retried request. If it times out, attaching checks it later."""


async def holds_objects(url: str, storage: SegmentCatalog, node_id: int) -> bool:
    """Return whether rows say that a broker has objects in a tier. Raises the storage's errors."""
    places = url, own_url(url, node_id)
    rows = [row for row in await storage.tiers() if row.url in places]
    rows = [row for row in rows if row.node_id in (None, node_id)]
    return any([await first_objects(storage, node_id, row.id) for row in rows])


async def check_tier(
    store: ObjectStore, url: str, storage: SegmentCatalog, node_id: int, cluster_id: str, data: str
) -> None:
    """Raise IdentityError if the tier belongs to another cluster, or is not where this broker's
    objects are. An unreachable tier passes. Raises the storage's errors."""
    rows = await storage.tiers()
    mine = [row for row in rows if row.node_id in (None, node_id)]
    own = own_url(url, node_id)
    # A tier that was used before: attaching checks its owner.
    if any(row.url in (url, own) for row in mine):
        return
    place = store
    if any(row.url == url for row in rows):  # of another broker of this cluster
        place, url = StoreFolder(store, folder_of(node_id)), own
    try:
        found = await asyncio.wait_for(read_owner(place), CHECK_S)
    except (OwnedByOther, DamagedOwner) as failure:
        raise IdentityError(f"the tier {url} cannot be used: {failure}") from failure
    # The start does not wait for the bucket: attaching makes the same check later.
    except (StoreError, OSError, TimeoutError) as failure:
        why = str(failure) or f"no answer in {CHECK_S:g} s"
        logger.warning("cannot read the owner of the tier %s yet: %s", url, why)
        return
    owner: OwnerRecord | None = found[0] if found is not None else None
    if owner is not None and owner.cluster_id != cluster_id:
        raise IdentityError(
            f"the tier {url} belongs to cluster {owner.cluster_id}, {data} to cluster "
            f"{cluster_id}: choose another prefix, or restore that cluster into a new data folder "
            f"with `kafkawire restore {url} --data NEW`"
        )
    if owner is not None and owner.node_id != node_id:
        raise IdentityError(
            f"the tier {url} is written by node {owner.node_id} of this cluster: start that broker "
            "first, and with offset.storage=rocksdb give each broker a tier.url of its own"
        )
    current = next((row.url for row in mine if row.state == CURRENT), "")
    if owner is None and current and await storage.objects(node_id, (COPY_FINISHED,), 1):
        raise IdentityError(
            f"the objects of this broker are in {current}, not in {url}: start with "
            f"--tier {current}, and move them with `kafkawire tier move --to {url}`"
        )
