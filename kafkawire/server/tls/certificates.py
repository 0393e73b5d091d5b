"""The contexts of the TLS listeners of a broker, built again when a PEM file changes.

Contents are compared, not times: Kubernetes replaces a link to a folder. Open connections keep the
context they began with. Files that cannot be used change nothing.
"""

from __future__ import annotations

import logging

from kafkawire.changed_content import POLL_S, SettledContent
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.ports import Env
from kafkawire.security.principals import USER, Principal
from kafkawire.security.tls.contexts import Contexts, TlsError, TlsSettings, digest_of, load
from kafkawire.security.tls.mapping import PrincipalMapping, subject_of

logger = logging.getLogger(__name__)


class Certificates:
    """The contexts in use, and the names of clients. `contexts`: for new connections."""

    def __init__(self, env: Env, settings: TlsSettings, contexts: Contexts, rules: str) -> None:
        self._env = env
        self._settings = settings
        self._mapping = PrincipalMapping(rules)
        self._content = SettledContent(contexts.digest)
        self._refused = ""
        self.contexts = contexts

    @classmethod
    async def open(cls, env: Env, config: BrokerConfig) -> Certificates:
        """Load the files of a broker. Raises TlsError or RuleError."""
        settings = TlsSettings.from_config(config)
        contexts = await env.offload.submit("files", lambda: load(settings, may_be_expired=True))
        if not contexts.expires_s:
            logger.critical(
                "ssl.keystore.location=%s: the certificate has expired, clients will not connect; "
                "replace the file, which is read again every few seconds",
                settings.keystore,
            )
        return cls(env, settings, contexts, config.ssl_principal_mapping_rules)

    async def watch_files(self) -> None:
        """Load changed files until cancelled."""
        while True:
            await self._env.sleep(POLL_S)
            await self.check()

    async def check(self) -> None:
        """Load the files if they have changed, and are the same as at the last call."""
        try:
            digest = await self._env.offload.submit("files", digest_of, self._settings)
            if not self._content.is_new(digest) or digest == self.contexts.digest:
                return
            self.contexts = await self._env.offload.submit("files", load, self._settings)
        except TlsError as wrong:
            self._refuse(str(wrong))
            return
        self._refused = ""
        logger.info("the TLS certificate was loaded again from %s", self._settings.keystore)

    def _refuse(self, why: str) -> None:
        """Log once why files cannot be used."""
        if self._refused != why:
            self._refused = why
            logger.critical(
                "%s: the certificate loaded before stays in use for new connections; repair the "
                "file, which is read again every few seconds",
                why,
            )

    def principal_of(self, certificate: bytes) -> Principal:
        """Return the principal of a client's certificate. Raises RuleError or SubjectError."""
        return Principal(USER, self._mapping.name_of(subject_of(certificate)))
