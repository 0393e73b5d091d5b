"""Quotas set by a client of a test."""

from __future__ import annotations

from collections.abc import Mapping

from kafkawire.messages.alter_client_quotas import AlterClientQuotasRequest, EntryData, OpData
from kafkawire.messages.describe_client_quotas import EntityData
from kafkawire.security.quotas.alterations import Entity
from tests.kit.client import Client

USER: Entity = (("user", "ANONYMOUS"),)


async def set_quotas(client: Client, entity: Entity, values: Mapping[str, float | None]) -> None:
    """Set quotas of an entity, or remove those that are None."""
    ops = [OpData(key, value or 0.0, value is None) for key, value in values.items()]
    entry = EntryData([EntityData(kind, name) for kind, name in entity], ops)
    answer = await client.call(AlterClientQuotasRequest([entry]), 1)
    assert [row.error_code for row in answer.entries] == [0], answer
