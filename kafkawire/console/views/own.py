"""Requests that only a kafkawire broker answers, over connections of their own.

ApiVersions does not list these requests, and another broker closes the connection, so they never go
over a connection that others use. A broker that is not kafkawire is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.tier import CommandRefused, tier_command
from kafkawire.console.views.traffic import MAX_BROKERS, BrokerTraffic

T = TypeVar("T")


class NotKafkawire(ClientError):
    """The broker is another Kafka, whose protocol has no such request."""

    def __init__(self) -> None:
        super().__init__("only a kafkawire broker answers this: Kafka's protocol has no request")


class OwnBroker:
    """Whether the brokers of a cluster are kafkawire, and their own answers. `known`: None until
    one was asked."""

    def __init__(self) -> None:
        self.known: bool | None = None

    def read_tier(self, cluster: Cluster) -> Mapping[str, Any] | None:
        """Return the state of the remote tier, and what is not uploaded, of one broker
        (kafkawire.tiering.admin.status.why); None without a tier, without the right to read it, or
        of another Kafka."""
        answers = self._ask(cluster, cluster.nodes()[:1], lambda at: tier_command(at, "why"))
        return answers[0] if answers else None

    def read_traffic(self, cluster: Cluster) -> BrokerTraffic | None:
        """Return the traffic of all brokers since their starts; None of a large cluster, without
        the right to read it, of another Kafka, or of a broker of an earlier version."""
        nodes = cluster.nodes()
        if len(nodes) > MAX_BROKERS:
            return None
        answers = self._ask(cluster, nodes, lambda at: tier_command(at, "traffic"))
        return BrokerTraffic.of(answers) if len(answers) == len(nodes) else None

    def read_offset_maps(
        self, cluster: Cluster, nodes: list[int], topic: str, indexes: list[int]
    ) -> dict[int, Mapping[str, Any]]:
        """Return the segments of each partition that these brokers lead, by index
        (kafkawire.handlers.offset_map); empty without the right to read them, or of another
        Kafka."""

        def read(at: ClientConnection) -> list[Mapping[str, Any]]:
            return list(tier_command(at, "map", topic=topic, partitions=indexes)["partitions"])

        answers = self._ask(cluster, nodes, read)
        return {row["partition"]: row for answer in answers for row in answer}

    def ask(self, cluster: Cluster, node: int, ask: Callable[[ClientConnection], T]) -> T:
        """Return what `ask` returns, which sends requests of kafkawire's own. NotKafkawire, before
        a connection is opened if that is known; CommandRefused; ClientError."""
        if self.known is False:
            raise NotKafkawire
        connection = cluster.separate(node)
        try:
            found = ask(connection)
        except (CommandRefused, BrokerError):
            self.known = True
            raise
        except ClientError:
            # Its connection fails in the same way while it restarts: then it is known.
            if self.known:
                raise
            self.known = False
            raise NotKafkawire from None
        finally:
            connection.close()
        self.known = True
        return found

    def _ask(
        self, cluster: Cluster, nodes: list[int], ask: Callable[[ClientConnection], T]
    ) -> list[T]:
        found: list[T] = []
        for node in nodes:
            with suppress(ClientError):
                found.append(self.ask(cluster, node, ask))
        return found
