"""One connection to one broker, one request at a time."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Any

from kafkawire.client.errors import ClientError, Closed, NoAnswer, Unsupported, check
from kafkawire.client.security import NO_SECURITY, ClientSecurity, NoTls
from kafkawire.codec.compile import decode, decoder, encode
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.types import DecodeError
from kafkawire.log_lines import address_of, reason_of
from kafkawire.messages.headers import RequestHeader, ResponseHeader
from kafkawire.messages.registry import API_VERSIONS, APIS, OWN, response_class, spec_of

TIMEOUT_S = 30.0
"""Timeout for connecting and for each response, as in Kafka's tools (request.timeout.ms)."""
REACHED_WITHIN_S = 1.5
"""Limit for all addresses of a service together: a round trip to another continent is 0.3 s."""
FRAME_BYTES_MAX = 256 << 20
"""Maximum size of a response; a larger one means that the server is not a Kafka broker."""
HEADER_BYTES_MAX = 1024
"""Maximum size of a response header: a number, and tagged fields, of which there are none yet."""
CLIENT_ID = "kafkawire-cli"
TLS_RECORDS = (b"\x15", b"\x16")
"""First bytes of an alert and of a handshake."""
LOGIN_HINT = (
    "it may require a log-in: pass --command-config FILE with security.protocol=SASL_SSL (without "
    "TLS: SASL_PLAINTEXT), sasl.mechanism, sasl.username and sasl.password"
)


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Return a connected socket. Raises OSError, also if `host` cannot be the name of a host."""
    try:
        return socket.create_connection((host, port), timeout_s)
    except UnicodeError:
        raise socket.gaierror(socket.EAI_NONAME, "it is not a name of a host") from None


def speaks_tls(host: str, port: int) -> bool:
    """Return whether a server answers the first message of a TLS handshake with TLS."""
    import ssl

    greeting = ssl.MemoryBIO()
    shaking = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), greeting, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    try:
        with connect(host, port, REACHED_WITHIN_S) as connected:
            connected.sendall(greeting.read())
            return connected.recv(1) in TLS_RECORDS
    except OSError:
        return False


def _answers_without_tls(host: str, port: int) -> bool:
    try:
        ClientConnection(host, port, connect_timeout_s=REACHED_WITHIN_S).close()
    except ClientError:
        return False
    return True


def reach(addresses: Sequence[tuple[str, int]]) -> None:
    """Connect to the first address of a service that accepts a connection. Raises the OSError of
    the last."""
    for at, address in enumerate(addresses):
        try:
            connect(*address, REACHED_WITHIN_S / len(addresses)).close()
            return
        except OSError:
            if at == len(addresses) - 1:
                raise


class ClientConnection:
    """A connection to one broker."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout_s: float = TIMEOUT_S,
        security: ClientSecurity = NO_SECURITY,
        client_id: str = CLIENT_ID,
    ) -> None:
        self._client_id = client_id
        self.address = address_of(host, port)
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._has_own = False  # has answered a request of kafkawire's own
        self._may_need_login = not security.mechanism  # until a request is answered
        try:
            connected = connect(host, port, connect_timeout_s)
            self._socket = security.wrap(connected, host)
        except OSError as error:
            if isinstance(error, NoTls) and _answers_without_tls(host, port):
                protocol = "SASL_PLAINTEXT" if security.mechanism else "PLAINTEXT"
                raise ClientError(
                    f"{self.address} does not speak TLS: set security.protocol={protocol} in the "
                    "file of --command-config"
                ) from None
            reason = error.strerror or str(error)
            raise NoAnswer(f"cannot connect to {self.address}: {reason}") from None
        try:
            self._learn_versions()
            if security.mechanism:
                from kafkawire.client.security import log_in

                log_in(self, security)
        except ClientError as failure:
            self.close()
            if isinstance(failure, Closed) and not (security.tls or self._versions):
                if not speaks_tls(host, port):
                    raise Closed(f"{failure} at the first request") from None
                protocol = "SASL_SSL" if security.mechanism else "SSL or SASL_SSL"
                raise ClientError(
                    f"{self.address} speaks TLS: pass --command-config FILE with "
                    f"security.protocol={protocol}"
                ) from None
            raise
        self._socket.settimeout(TIMEOUT_S)

    def close(self) -> None:
        """Close the socket; may be called more than once. A request that another thread waits for
        fails."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def version(self, key: int, at_most: int | None = None) -> int:
        """Return the newest version of an API that both sides support."""
        spec = APIS[key]
        lowest, highest = self._versions.get(key, (0, -1))
        version = min(highest, spec.max_version, highest if at_most is None else at_most)
        if version < max(lowest, spec.min_version):
            raise Unsupported(f"the broker at {self.address} does not support {spec.name}")
        return version

    def supports(self, key: int) -> bool:
        """Return whether both sides support an API."""
        lowest, highest = self._versions.get(key, (0, -1))
        return highest >= max(lowest, APIS[key].min_version) and lowest <= APIS[key].max_version

    def request(self, key: int, message: object, *, at_most: int | None = None) -> Any:
        """Send a request and return its decoded response."""
        try:
            answer = self._exchange(key, self.version(key, at_most), message)
        except Closed as failure:
            if self._may_need_login:
                raise Closed(f"{failure} at the first request: {LOGIN_HINT}") from None
            raise
        self._may_need_login = False
        return answer

    def send(self, key: int, message: object, *, at_most: int | None = None) -> None:
        """Send a request that the broker does not answer: Produce with acks=0."""
        self._send(key, self.version(key, at_most), message)

    def request_own(self, key: int, message: object) -> Any:
        """Send a request of kafkawire's own API, which ApiVersions does not list: any other broker
        closes the connection."""
        try:
            answer = self._exchange(key, OWN[key].max_version, message)
        except Closed:
            if self._has_own:
                raise
            raise ClientError(
                f"the broker at {self.address} closed the connection instead of answering "
                f"{OWN[key].name}: it is not kafkawire, or an older version"
            ) from None
        self._has_own = True
        return answer

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

    def _send(self, key: int, version: int, message: object) -> None:
        self._correlation_id += 1
        spec = spec_of(key)
        header = RequestHeader(key, version, self._correlation_id, self._client_id)
        body = encode(header, spec.request_header_version(version)) + encode(message, version)
        try:
            self._socket.sendall(struct.pack(">i", len(body)) + body)
        except TimeoutError:
            limit = f"{self._socket.gettimeout():g} s"
            raise NoAnswer(f"{self.address} did not take {spec.name} in {limit}") from None
        except OSError as error:
            raise Closed(f"the connection to {self.address} failed: {reason_of(error)}") from None

    def _exchange(self, key: int, version: int, message: object) -> Any:
        self._send(key, version, message)
        name = spec_of(key).name
        try:
            frame = self._receive(struct.unpack(">i", self._receive(4))[0])
        except TimeoutError:
            limit = f"{self._socket.gettimeout():g} s"
            raise NoAnswer(f"{self.address} did not answer {name} in {limit}") from None
        except OSError as error:
            raise Closed(f"the connection to {self.address} failed: {reason_of(error)}") from None
        try:
            return self._decode(key, version, frame)
        except DecodeError as error:
            raise ClientError(f"{self.address} sent an invalid answer to {name}: {error}") from None

    def _receive(self, size: int) -> bytearray:
        if size.to_bytes(4, "big", signed=True)[:2] == b"\x15\x03":  # an alert of TLS
            raise Closed(f"{self.address} refused the connection")
        if not 0 <= size <= FRAME_BYTES_MAX:
            raise ClientError(f"the server at {self.address} does not speak the Kafka protocol")
        frame = bytearray(size)
        view = memoryview(frame)
        at = 0
        while at < size:
            got = self._socket.recv_into(view[at:])
            if not got:
                raise Closed(f"{self.address} closed the connection")
            at += got
        return frame

    def _decode(self, key: int, version: int, frame: bytearray) -> Any:
        spec = spec_of(key)
        header_version = spec.response_header_version(version)
        size = min(len(frame), HEADER_BYTES_MAX)
        header, at = decoder(ResponseHeader, header_version)(frame, 0, size)
        if header.correlation_id != self._correlation_id:
            raise DecodeError(f"the answer to request {header.correlation_id}")
        refused = key == API_VERSIONS and frame[at : at + 2] == b"\0\x23"  # KIP-511: in v0 format
        return decode(response_class(key), 0 if refused else version, memoryview(frame)[at:])
