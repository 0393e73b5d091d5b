"""Changes to the finalized features of the cluster at run time.

A change is checked, stored in one SQL transaction, and applied to the catalog: ApiVersions and the
coordinators of transactions use it for the next request. An open transaction continues: its client
keeps the versions of requests it knows, which are served at every level. Called by UpdateFeatures.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire.codec.configs.features import FeatureUpdate, check_update
from kafkawire.codec.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kafkawire.broker.following.lock import CatalogLock
    from kafkawire.metadata.catalog import Catalog
    from kafkawire.metadata.store import Metadata

logger = logging.getLogger(__name__)


class FeatureService:
    """Changes the features of `catalog`. `node_id` is in the texts of errors, as in Kafka."""

    def __init__(
        self, catalog: Catalog, metadata: Metadata, node_id: int, lock: CatalogLock
    ) -> None:
        self._catalog = catalog
        self._metadata = metadata
        self._node_id = node_id
        self._lock = lock

    async def update(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        """Finalize all requested levels or none; a feature requested twice gets the last one.
        Raises KafkaError, or MetadataError if the change could not be stored."""
        last = {update.name: update for update in updates}.values()
        await self._lock.change(lambda seen: self._update(list(last), validate_only, seen))

    async def _update(
        self, updates: Sequence[FeatureUpdate], validate_only: bool, seen: int
    ) -> None:
        for update in updates:
            reason = check_update(self._catalog.features, update, self._node_id)
            if reason is not None:
                raise KafkaError(
                    ErrorCode.INVALID_UPDATE_VERSION,
                    "The update failed for all features since the following feature had an "
                    f"error: {reason}",
                )
        levels = self._catalog.features.changed_by(updates)
        if validate_only or not levels:
            return
        epoch = await self._metadata.finalize_features(levels, seen)
        self._catalog.finalize_features(levels, epoch)
        for name, level in levels.items():
            logger.info(
                "feature %s is finalized at level %d, in epoch %d: clients see it when they "
                "connect or send ApiVersions again",
                name, level, epoch,
            )  # fmt: skip
