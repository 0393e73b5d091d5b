"""Broker processes of one cluster on one PostgreSQL and one bucket, each with a data folder of its
own, whose connections fail on request.

with Network() as network, FaultyCluster(folder, network, url, minio, tier_url) as cluster:
    with network.silent("1", SQL):
        ...
    cluster.kill(2)
    cluster.wipe(2)

The links of broker N are (N, SQL) and (N, S3) to its servers, and (CLIENTS, N) from clients, which
other brokers use as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from kafkawire.testing.process import BrokerProcess
from tests.kit.cluster import Cluster
from tests.kit.minio import Minio
from tests.kit.ports import free_port
from tests.kit.proxy import Address, Network

SQL, S3, CLIENTS = "sql", "s3", "clients"


class _Process(BrokerProcess):
    """A broker with an address of its own for S3. `environ` would do as well, but cost each start a
    new fork server, a second or more."""

    def __init__(
        self,
        data: Path,
        endpoint: str,
        port: int,
        settings: Mapping[str, object],
        arguments: Sequence[str],
    ) -> None:
        super().__init__(data, port=port, settings=settings, arguments=arguments)
        self._endpoint = endpoint

    def start(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", self._endpoint)
            super().start()


class FaultyCluster(Cluster):
    """Brokers whose connections are links of `network`. `url`: a database on PostgreSQL;
    `tier_url`: as of the fixture, whose credentials are in the environment; without an endpoint,
    so that it is the same for all brokers although each has an address of its own for the server.
    """

    def __init__(
        self,
        folder: Path,
        network: Network,
        url: str,
        minio: Minio,
        tier_url: str,
        nodes: Sequence[int] = (1, 2),
        settings: Mapping[str, object] | None = None,
        own: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        self.network = network
        self._minio = minio
        self._addresses: dict[int, Address] = {}
        super().__init__(folder, url, nodes, {**(settings or {}), "tier.url": tier_url}, own=own)

    def _process(self, data: Path, url: str, settings: Mapping[str, object]) -> BrokerProcess:
        node, port = str(settings["node.id"]), free_port()
        advertised = self.network.link(CLIENTS, node, ("127.0.0.1", port))
        self._addresses[int(node)] = "127.0.0.1", advertised
        metadata = self._through(node, SQL, url)
        endpoint = self._through(node, S3, self._minio.endpoint)
        words = ["--metadata", metadata, "--advertise", f"127.0.0.1:{advertised}"]
        return _Process(data, endpoint, port, settings, words)

    def _through(self, node: str, destination: str, url: str) -> str:
        """Start a link from a broker to the server of a URL; return the URL to use instead."""
        parts = urlsplit(url)
        assert parts.port is not None
        port = self.network.link(node, destination, (parts.hostname or "", parts.port))
        user = f"{parts.username}@" if parts.username else ""
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}"))

    def bootstrap(self, node: int) -> str:
        host, port = self._addresses[node]
        return f"{host}:{port}"

    @property
    def addresses(self) -> str:
        """Bootstrap servers for clients that may begin with any broker."""
        return ",".join(self.bootstrap(node) for node in self.brokers)
