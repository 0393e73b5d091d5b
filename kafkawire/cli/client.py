"""A blocking Kafka client for the admin commands: one connection, one request at a time.

Speaks through this project's own codec, in the newest version both sides know. Not a general
client: no batches, no retries, no background work. `Cluster` finds the broker that leads a
partition or coordinates a group. Works against any Kafka. Every error is a ClientError, one
sentence. Called by kafkawire.cli.topics, groups and reset.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from kafkawire.cli.options import OptionError, parse_server
from kafkawire.codec.compile import decode, decoder, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import DecodeError
from kafkawire.messages.headers import RequestHeader, ResponseHeader
from kafkawire.messages.registry import API_VERSIONS, APIS, OWN, response_class, spec_of

TIMEOUT_S = 30.0
"""For connecting and for each answer: as long as Kafka's tools wait (request.timeout.ms)."""
FRAME_BYTES_MAX = 256 << 20
"""No answer to an admin request is larger; more means that no Kafka broker is answering."""
CLIENT_ID = "kafkawire-cli"


class ClientError(Exception):
    """It did not work; the text is one sentence."""


class Closed(ClientError):
    """The broker closed the connection instead of answering."""


class BrokerError(ClientError):
    """The broker answered with an error code."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        known = ErrorCode(code) if code in set(ErrorCode) else None
        name = known.name if known is not None else f"error {code}"
        sentence = message or (known.sentence if known is not None else "an unknown error.")
        super().__init__(f"{what}: the broker answered {name}: {sentence}")
        self.code = code


def check(what: str, code: int, message: str | None = None) -> None:
    """BrokerError unless `code` is 0."""
    if code:
        raise BrokerError(what, code, message)


class Connection:
    """A connection to one broker."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        try:
            self._socket = socket.create_connection((host, port), TIMEOUT_S)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ClientError(f"cannot connect to {self.address}: {reason}") from None
        try:
            self._learn_versions()
        except ClientError:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket; more than once is fine."""
        self._socket.close()

    def version(self, key: int, at_most: int | None = None) -> int:
        """The newest version of an API that both sides know."""
        spec = APIS[key]
        lowest, highest = self._versions.get(key, (0, -1))
        version = min(highest, spec.max_version, highest if at_most is None else at_most)
        if version < max(lowest, spec.min_version):
            raise ClientError(f"the broker at {self.address} does not serve {spec.name}")
        return version

    def request(self, key: int, message: object, *, at_most: int | None = None) -> Any:
        """Send a request, wait for its response, and return that, decoded."""
        return self._exchange(key, self.version(key, at_most), message)

    def request_own(self, key: int, message: object) -> Any:
        """As `request`, for an API of our own, of which ApiVersions says nothing: any other Kafka
        closes the connection."""
        try:
            return self._exchange(key, OWN[key].max_version, message)
        except Closed:
            raise ClientError(
                f"the broker at {self.address} closed the connection instead of answering "
                f"{OWN[key].name}: it is no kafkawire, or an older one"
            ) from None

    def _learn_versions(self) -> None:
        from kafkawire.messages.api_versions import ApiVersionsRequest

        asked = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="0")
        answer = self._exchange(API_VERSIONS, 3, asked)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            answer = self._exchange(API_VERSIONS, 0, ApiVersionsRequest())
        check("ApiVersions", answer.error_code)
        self._versions = {
            row.api_key: (row.min_version, row.max_version) for row in answer.api_keys
        }

    def _exchange(self, key: int, version: int, message: object) -> Any:
        self._correlation_id += 1
        spec = spec_of(key)
        header = RequestHeader(key, version, self._correlation_id, CLIENT_ID)
        body = encode(header, spec.request_header_version(version)) + encode(message, version)
        try:
            self._socket.sendall(struct.pack(">i", len(body)) + body)
            frame = self._receive(struct.unpack(">i", self._receive(4))[0])
        except TimeoutError:
            limit = f"{TIMEOUT_S:g} s"
            raise ClientError(f"{self.address} did not answer {spec.name} in {limit}") from None
        except OSError as error:
            raise ClientError(f"the connection to {self.address} broke: {error}") from None
        try:
            return self._decode(key, version, frame)
        except DecodeError as error:
            raise ClientError(
                f"{self.address} answered {spec.name} with something else: {error}"
            ) from None

    def _receive(self, size: int) -> bytes:
        if not 0 <= size <= FRAME_BYTES_MAX:
            raise ClientError(f"what listens at {self.address} does not speak Kafka's protocol")
        parts = bytearray()
        while len(parts) < size:
            part = self._socket.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise Closed(f"{self.address} closed the connection")
            parts += part
        return bytes(parts)

    def _decode(self, key: int, version: int, frame: bytes) -> Any:
        spec = spec_of(key)
        header_version = spec.response_header_version(version)
        header, at = decoder(ResponseHeader, header_version)(frame, 0, len(frame))
        if header.correlation_id != self._correlation_id:
            raise DecodeError(f"the answer to request {header.correlation_id}")
        refused = key == API_VERSIONS and frame[at : at + 2] == b"\0\x23"  # KIP-511: in v0 format
        return decode(response_class(key), 0 if refused else version, frame[at:])


class Cluster:
    """The brokers behind one address; use it as a context manager."""

    def __init__(self, server: str) -> None:
        try:
            host, port = parse_server("--server", server)
        except OptionError as error:
            raise ClientError(str(error)) from None
        self.first = Connection(host, port)
        self._by_node: dict[int, Connection] = {}
        self._addresses: dict[int, tuple[str, int]] = {}

    def request(self, key: int, message: object, *, at_most: int | None = None) -> Any:
        """Ask the broker that was named; for APIs that any broker answers."""
        return self.first.request(key, message, at_most=at_most)

    def node(self, node_id: int) -> Connection:
        """A connection to the broker `node_id`, by the address the cluster advertises."""
        if node_id not in self._by_node:
            if node_id not in self._addresses:
                self.metadata([])
            if node_id not in self._addresses:
                raise ClientError(f"broker {node_id} is not in the cluster's metadata")
            self._by_node[node_id] = Connection(*self._addresses[node_id])
        return self._by_node[node_id]

    def nodes(self) -> list[int]:
        """The ids of all brokers."""
        self.metadata([])
        return sorted(self._addresses)

    def metadata(self, topics: Iterable[str] | None) -> Any:
        """A MetadataResponse on these topics (None: all); never creates one."""
        from kafkawire.messages.metadata import MetadataRequest, MetadataRequestTopic

        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        asked = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = self.request(3, asked)
        check("Metadata", answer.error_code)
        self._addresses.update({row.node_id: (row.host, row.port) for row in answer.brokers})
        return answer

    def coordinator(self, group: str) -> Connection:
        """A connection to the broker that coordinates `group`."""
        from kafkawire.messages.find_coordinator import FindCoordinatorRequest

        asked = FindCoordinatorRequest(key=group, coordinator_keys=[group])
        if self.first.version(10) < 4:
            asked.coordinator_keys = []
            found = self.request(10, asked)
        else:
            asked.key = ""
            found = self.request(10, asked).coordinators[0]
        check(f"group {group}", found.error_code, found.error_message)
        self._addresses[found.node_id] = (found.host, found.port)
        return self.node(found.node_id)

    def close(self) -> None:
        """Close every connection."""
        for connection in (self.first, *self._by_node.values()):
            connection.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
