"""Changes of the leaders of partitions, as if another process had made them."""

from __future__ import annotations

from collections.abc import Iterable

from kafkawire.metadata.catalog import Catalog
from kafkawire.metadata.directory import local_group


def move(catalog: Catalog, numbers: Iterable[int], leader: int) -> None:
    """Give partitions another leader in a catalog, in the next leader epoch."""
    group = catalog.group(leader)
    if group is None:
        group = local_group(leader)
        catalog.set_groups([group])
    for number in numbers:
        location = catalog.locate(number)
        assert location is not None, number
        catalog.move_partition(number, group.id, location.leader_epoch + 1 - group.epoch)
