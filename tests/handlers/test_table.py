"""The table of APIs: each row names a handler that exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.table import OWN_ROWS, ROWS, Api, ApiRow
from kafkawire.messages.api_versions import ApiVersionsRequest
from tests.kit.client import Client
from tests.kit.server import port_of, running


@pytest.mark.parametrize("row", [pytest.param(row, id=row.module) for row in (*ROWS, *OWN_ROWS)])
def test_each_row_names_a_handler(row: ApiRow) -> None:
    handler = getattr(Api(row).import_handler_module(), row.hot_class or row.module)
    assert callable(handler)


@pytest.mark.parametrize(
    ("own_cluster", "node_id", "code"),
    [
        (True, 1, ErrorCode.NONE),
        (True, 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        (True, -1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (False, 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, 2, ErrorCode.NONE),
    ],
)
async def test_misrouted_client_is_sent_to_its_bootstrap_servers(
    tmp_path: Path, own_cluster: bool | None, node_id: int, code: ErrorCode
) -> None:
    """KIP-1242; KafkaApis.clusterIdOrNodeIdIsInvalid checks both once a cluster is named."""
    async with running(tmp_path) as server:
        clusters = {True: server.broker.cluster_id, False: "another", None: None}
        request = ApiVersionsRequest("tests", "1", clusters[own_cluster], node_id)
        client = await Client.connect(port_of(server))
        try:
            answer = await client.call(request, 5)
            assert answer.error_code == code
            assert bool(answer.api_keys) == (code is ErrorCode.NONE)
        finally:
            await client.close()
