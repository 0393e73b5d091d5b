"""Finalized features: the feature levels that the whole cluster has switched on (KIP-584).

`transaction.version` (KIP-890): 0 stores transactions in the oldest format, 1 in the flexible one,
2 raises a producer's epoch with each transaction. `group.version` (KIP-848): 1 serves the consumer
group protocol; members of such a group get UNSUPPORTED_VERSION at 0. The feature share.version
(KIP-932): 1 serves share groups, 2 their dead letters (KIP-1191). `streams.version` (KIP-1071): 1
serves streams groups. `check_update` decides as the controller of Apache Kafka 4.3 does
(FeatureControlManager). Pure: levels are stored by the metadata store and changed by
`kafkawire.broker.features`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"
MAX_NAME = 249
"""Characters of an unknown feature's name that an error message repeats."""


class Feature(NamedTuple):
    """The levels supported by this broker, and the one of a new cluster."""

    name: str
    minimum: int
    maximum: int
    default: int


FEATURES = {
    TRANSACTION_VERSION: Feature(TRANSACTION_VERSION, 0, 2, 2),
    GROUP_VERSION: Feature(GROUP_VERSION, 0, 1, 1),  # on, as in a new cluster of Kafka 4
    SHARE_VERSION: Feature(SHARE_VERSION, 0, 2, 2),  # on, as in a new cluster of Kafka 4.4
    STREAMS_VERSION: Feature(STREAMS_VERSION, 0, 1, 1),  # on, as in a new cluster of Kafka 4.2
}


def is_supported(name: str, level: int) -> bool:
    """Whether this broker has the feature at that level."""
    feature = FEATURES.get(name)
    return feature is not None and feature.minimum <= level <= feature.maximum


class UpgradeType(IntEnum):
    """Directions that a request allows (Kafka: FeatureUpdate.UpgradeType)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A requested level. `upgrade_type`: as received, perhaps none of UpgradeType."""

    name: str
    level: int
    upgrade_type: int


class FinalizedFeatures:
    """The levels of one cluster, which change in place. `epoch` is raised by each change: clients
    ignore levels of an older epoch than they know."""

    __slots__ = ("_levels", "epoch")

    def __init__(self) -> None:
        self._levels = {feature.name: feature.default for feature in FEATURES.values()}
        self.epoch = 0

    def level(self, name: str) -> int:
        """Return the level of a feature of FEATURES; 0 is off."""
        return self._levels[name]

    def list_finalized(self) -> list[tuple[str, int]]:
        """Return name and level of each feature that is switched on."""
        return [(name, level) for name, level in self._levels.items() if level]

    def finalize(self, levels: Mapping[str, int], epoch: int) -> None:
        """Apply a stored change, of levels that are supported."""
        assert all(is_supported(name, level) for name, level in levels.items()), levels
        self._levels.update(levels)
        self.epoch = max(self.epoch, epoch)

    def changed_by(self, updates: Iterable[FeatureUpdate]) -> dict[str, int]:
        """Return the new levels of checked updates, without those that are finalized already."""
        return {
            update.name: update.level
            for update in updates
            if update.level != self._levels[update.name]
        }


def check_update(features: FinalizedFeatures, update: FeatureUpdate, node_id: int) -> str | None:
    """Return why an update is refused, in Kafka's words; None if it is allowed."""
    reason = _reason(features, update, node_id)
    if reason is None:
        return None
    name = update.name[:MAX_NAME]
    return f"Invalid update version {update.level} for feature {name}. {reason}"


def _reason(features: FinalizedFeatures, update: FeatureUpdate, node_id: int) -> str | None:
    if update.upgrade_type not in frozenset(UpgradeType):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    feature = FEATURES.get(update.name)
    if feature is None:
        if update.level == 0:
            return f"Feature {update.name[:MAX_NAME]} not found."
        return f"Local controller {node_id} does not support this feature."
    if not is_supported(update.name, update.level):
        levels = f"{feature.minimum}-{feature.maximum}"
        return f"Local controller {node_id} only supports versions {levels}"
    current = features.level(update.name)
    if update.level < current and update.upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    if update.level > current and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None
