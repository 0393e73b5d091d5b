"""Client quotas of a cluster (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check
from kafkawire.units import size

DESCRIBE, ALTER = 48, 49
EXACT, DEFAULT, ANY = range(3)
"""Match types of a filter."""

QuotaEntity = Mapping[str, str | None]
"""Names by type: `user`, `client-id` or `ip`. None is the default of the type."""


class QuotaRow(NamedTuple):
    """The quotas of one entity."""

    entity: dict[str, str | None]
    values: dict[str, float]


def find_quotas(cluster: Cluster, wanted: QuotaEntity) -> list[QuotaRow]:
    """Return the quotas of the entities that have these names, sorted; of all without names.
    BrokerError."""
    from kafkawire.messages.describe_client_quotas import (
        ComponentData,
        DescribeClientQuotasRequest,
    )

    components = [
        ComponentData(kind, DEFAULT if name is None else EXACT, name)
        for kind, name in wanted.items()
    ]
    answer = cluster.request(DESCRIBE, DescribeClientQuotasRequest(components))
    check("quotas", answer.error_code, answer.error_message)
    rows = [
        QuotaRow(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in sorted(entry.values, key=lambda each: each.key)},
        )
        for entry in answer.entries or ()
    ]
    return sorted(rows, key=_order)


def _order(row: QuotaRow) -> list[tuple[str, bool, str]]:
    """Sort users with their client ids, client ids, addresses; the default of each at its end."""
    return [
        (kind, name is None, name or "")
        for kind, name in sorted(row.entity.items(), reverse=True)
    ]  # fmt: skip


def alter_quotas(
    cluster: Cluster, entity: QuotaEntity, changes: Mapping[str, float | None]
) -> None:
    """Set quotas of an entity, or remove those whose value is None. BrokerError."""
    from kafkawire.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData, OpData
    from kafkawire.messages.describe_client_quotas import EntityData

    entry = EntryData(
        [EntityData(kind, name) for kind, name in entity.items()],
        [OpData(key, value or 0.0, value is None) for key, value in changes.items()],
    )
    for result in cluster.request(ALTER, AlterClientQuotasRequest([entry])).entries:
        check("quotas", result.error_code, result.error_message)


def limit_text(quota: str, value: float) -> str:
    """Return a limit with its unit, such as "1.0 MiB/s"."""
    if quota.endswith("_byte_rate"):
        return f"{size(value)}/s"
    return f"{value:.15g}" + ("%" if quota == "request_percentage" else "/s")
