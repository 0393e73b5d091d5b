"""Reports what a start found damaged, and which offsets are lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kafkawire.log.journal.losses import Loss, names
from kafkawire.log.partition.damaged_ranges import lost_ranges
from kafkawire.log.partition.partition import Partition
from kafkawire.log.recovery.result import Recovered
from kafkawire.metadata.catalog import Catalog
from kafkawire.offsets.catalog.port import SegmentCatalog

logger = logging.getLogger(__name__)

MAX_REPORTED = 100
"""Partitions with lost offsets that get a log line each."""


async def report(
    recovered: Recovered,
    losses: Sequence[Loss],
    catalog: Catalog,
    partitions: Mapping[int, Partition],
    storage: SegmentCatalog,
    node_id: int,
) -> None:
    """Log what is damaged and which offsets are lost, one line each. Raises what the storage
    raises."""
    name = catalog.name_of
    for damage in recovered.examined:
        logger.critical(
            "journal %d %s. All other records are served.",
            damage.gap.journal,
            damage.text(name),
        )
    for loss in losses[:MAX_REPORTED]:
        logger.critical(
            "%s continues at offset %d: offsets %d-%d may have been acknowledged and cannot be "
            "read",
            name(loss.number),
            loss.last,
            loss.first,
            loss.last - 1,
        )
    if len(losses) > MAX_REPORTED:
        logger.critical(
            "%d more partitions may have lost offsets: `kafkawire fsck` lists them",
            len(losses) - MAX_REPORTED,
        )
    if any(gap.missing or gap.cut_short for gap in recovered.damage):
        numbers = range(catalog.last_number() + 1)
        led = (number for number in numbers if catalog.leader_of(number) == node_id)
        named = {(loss.number, loss.first) for loss in losses}
        lost = await lost_ranges(led, partitions, storage)
        lost = [loss for loss in lost if (loss.number, loss.first) not in named]
        if lost:
            logger.critical(
                "lost offsets, found in no journal and no segment: %s", names(lost, name)
            )
