"""State that TLS listeners share: certificates, the queue of handshakes, a buffer.

Listeners with settings of their own have other certificates, and the same queue and buffer.
"""

from __future__ import annotations

import ssl

from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.security.tls.contexts import TlsError
from kafkawire.security.tls.mapping import RuleError
from kafkawire.server.tls.certificates import Certificates
from kafkawire.server.tls.handshakes import Handshakes

__all__ = ["RuleError", "Tls", "TlsError", "TlsShared"]

READ_BYTES = 1 << 18
"""Maximum bytes of one socket read: the kernel's usual receive buffer."""


class TlsShared:
    """The state shared by all TLS sockets of a broker. `buffer`: each is read into it, and its
    bytes are used before the next read. `outgoing`: OpenSSL writes into it for each; it is empty
    between their calls."""

    def __init__(self, env: Env) -> None:
        self.handshakes = Handshakes(env.clock.monotonic, env.call_soon, env.call_later)
        self.outgoing = ssl.MemoryBIO()
        self.buffer = memoryview(bytearray(READ_BYTES))


class Tls:
    """TLS of the listeners with the same settings."""

    def __init__(self, env: Env, certificates: Certificates, shared: TlsShared) -> None:
        self.certificates = certificates
        self.handshakes = shared.handshakes
        self.buffer = shared.buffer
        self.outgoing = shared.outgoing
        self._watching = env.spawn(certificates.watch_files(), "TLS certificates")

    @classmethod
    async def open(cls, env: Env, config: BrokerConfig, shared: TlsShared) -> Tls:
        """Load the certificate and watch its files. Raises TlsError or RuleError."""
        return cls(env, await Certificates.open(env, config), shared)

    def context(self, asks_clients: bool) -> ssl.SSLContext:
        """Return the context for a new connection; `asks_clients`: for a certificate, if
        `ssl.client.auth` says so."""
        contexts = self.certificates.contexts
        return contexts.asking if asks_clients else contexts.silent

    def close(self) -> None:
        """Stop watching the files."""
        self._watching.cancel()
