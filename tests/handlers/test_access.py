"""The rights that each API needs, with a broker that has an authorizer: every row of the table,
refused and allowed.

Covers: kafkawire.handlers.access, kafkawire.handlers.hot_rights, kafkawire.security.acls.rights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kafkawire.handlers.access import ACCESS, BEFORE_LOGIN
from kafkawire.handlers.table import OWN_ROWS, ROWS
from kafkawire.messages.find_coordinator import FindCoordinatorRequest
from kafkawire.security.acls.model import Acl, AclFilter, Operation, ResourceKind
from kafkawire.server.run import Server
from tests.kit.access_cases import CASES, NAMES, REFUSALS, Case, codes, rule
from tests.kit.client import Client
from tests.kit.produce_fetch import make
from tests.kit.server import port_of, running

ADMIN = "127.0.0.2"
"""The address of the administrator, who is the same principal."""
TOKENS = {38, 41}
"""APIs of delegation tokens, for clients that have logged in: see
tests/server/test_delegation_tokens.py."""
SHARES = {78, 79}
"""APIs that fetch for share groups: see tests/handlers/test_share_fetch.py."""
HIDING = {16, 66}
"""APIs that leave out what one may not see, without an error."""


@asynccontextmanager
async def guarded(folder: Path, **settings: str) -> AsyncIterator[tuple[Server, Client]]:
    """A broker where only rules of ADMIN exist, with topic "t", and a client without rights."""
    small = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}
    async with running(folder, authorizer="acl", **small, **settings) as server:
        await allow(server, *(rule(Operation.ALL, kind, "*", host=ADMIN) for kind in NAMES))
        await allow(server, rule(Operation.ALL, ResourceKind.CLUSTER, host=ADMIN))
        admin = await Client.connect(port_of(server), host=ADMIN)
        await make(admin, "t")
        for kind in (0, 1):
            found = await admin.call(FindCoordinatorRequest("g", kind), 2)
            assert not found.error_code
        client = await Client.connect(port_of(server))
        try:
            yield server, client
        finally:
            await admin.close()
            await client.close()


async def allow(server: Server, *rules: Acl) -> None:
    assert server.broker.security.acls is not None
    await server.broker.security.acls.create(rules)


def test_table_has_every_api() -> None:
    served = {row.key for row in (*ROWS, *OWN_ROWS)} - BEFORE_LOGIN
    assert served <= ACCESS.keys()


def test_cases_cover_every_api_that_needs_rights() -> None:
    need = {key for key, access in ACCESS.items() if access.whole or access.items}
    own = {row.key for row in OWN_ROWS}
    served = {row.key for row in ROWS}
    assert {case.key for case in CASES} | HIDING | TOKENS | own >= need & served


@pytest.mark.parametrize("case", CASES, ids=repr)
async def test_request_is_refused_without_rights_and_served_with_them(
    tmp_path: Path, case: Case
) -> None:
    async with guarded(tmp_path) as (server, client):
        topic_id = server.broker.catalog.by_name["t"].id
        refused = await client.call(case.request(topic_id), case.version)
        assert case.code in codes(refused), refused
        others = [REFUSALS & codes(refused)]
        for operation, kind in case.needs:
            await allow(server, rule(operation, kind))
            answer = await client.call(case.request(topic_id), case.version)
            others.append(REFUSALS & codes(answer))
        assert not others[-1], answer
        assert all(others[:-1]), "a part of the rights is enough"
        assert server.broker.security.acls is not None
        await server.broker.security.acls.delete([AclFilter(host="*")])
        again = await client.call(case.request(topic_id), case.version)
        assert case.code in codes(again), "revoked, but still served"
