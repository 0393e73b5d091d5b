"""Commands to the remote tier of a running kafkawire broker: an API of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.messages.registry import TIER


class CommandRefused(ClientError):
    """The broker answered a command with an error."""


def refusal(what: str, answer: Any) -> CommandRefused:
    """Return the error of an answer, which may have no text, as without the right to ask."""
    if answer.error_message:
        return CommandRefused(f"{what}: {answer.error_message}")
    return CommandRefused(str(BrokerError(what, answer.error_code)))


def send_command(cluster: Cluster, name: str, **arguments: Any) -> dict[str, Any]:
    """Send a tier command and return its answer. ClientError."""
    return tier_command(cluster.first, name, **arguments)


def tier_command(connection: ClientConnection, name: str, **arguments: Any) -> dict[str, Any]:
    """Send a tier command to one broker and return its answer. CommandRefused with the broker's
    message; ClientError if it is not kafkawire, which closes the connection."""
    from kafkawire.messages.tier import TierRequest

    asked = TierRequest(command=name, arguments=json.dumps(arguments).encode())
    answer = connection.request_own(TIER, asked)
    if answer.error_code:
        raise refusal(f"tier {name}", answer)
    try:
        body: dict[str, Any] = json.loads(answer.body)
    except ValueError as error:
        raise ClientError(f"tier {name}: the broker sent an unexpected answer: {error}") from None
    return body


def pages(cluster: Cluster, name: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Return the joined answers of a command that answers in pages."""
    after: Any = None
    while True:
        answer = send_command(cluster, name, after=after, **arguments)
        yield answer
        after = answer["next"]
        if after is None:
            return
