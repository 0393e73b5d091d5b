"""Requests about share states to the share coordinators of other brokers: APIs 83 to 87.

kafkawire.share.state.persister decides what is sent when, and repeats what failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kafkawire.share.state.machine import StateAnswer, StateRequest
from kafkawire.share.state.wire import FORMATS, format_message, parse_response

if TYPE_CHECKING:
    from kafkawire.broker.other_brokers import OtherBrokers


class RemoteShareStates:
    """The RemoteStates of a broker: a connection to each other one."""

    def __init__(self, brokers: OtherBrokers) -> None:
        self._brokers = brokers

    async def send(
        self, broker: int, requests: Sequence[StateRequest]
    ) -> dict[tuple[bytes, int], StateAnswer]:
        """Send requests of one kind and one group; see RemoteStates."""
        key = FORMATS[type(requests[0])].key
        return parse_response(await self._brokers.request(broker, key, format_message(requests)))

    def close(self) -> None:
        """End the connections."""
        self._brokers.close()
