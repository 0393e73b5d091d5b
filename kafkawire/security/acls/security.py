"""The parts of a broker's security: audit log, access rules, delegation tokens, and what refreshes
them.

Opened by the broker before it serves, closed after the last request.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kafkawire.metadata.store import MetadataError
from kafkawire.security import versions
from kafkawire.security.audit import Audit, NoAudit, open_audit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.store import Transactions
    from kafkawire.security.acls.service import AclService
    from kafkawire.security.delegation.service import DelegationTokens

logger = logging.getLogger(__name__)

REFRESH_S = 1.0
"""How often another broker's changes are looked for: a revoked right ends within this time."""


class Security:
    """The parts; `acls` is None without an authorizer, `tokens` without a secret key."""

    def __init__(
        self,
        audit: Audit | None = None,
        acls: AclService | None = None,
        tokens: DelegationTokens | None = None,
    ) -> None:
        self.audit: Audit = NoAudit() if audit is None else audit
        self.acls = acls
        self.tokens = tokens
        self._refreshing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, env: Env, store: Transactions, config: BrokerConfig) -> Security:
        """Open what the settings ask for. Raises OSError (MetadataError, or for the audit log)."""
        audit = open_audit(env, config.audit_log)
        try:
            acls = await _open_acls(env, store, config)
            return cls(audit, acls, await _open_tokens(env, store, config))
        except BaseException:
            await audit.close()
            raise

    async def watch(
        self, env: Env, store: Transactions, refresh_quotas: Callable[[int], Awaitable[None]]
    ) -> None:
        """Start to load what other brokers change. `refresh_quotas` takes the stored version of the
        quotas."""
        self._refreshing = env.spawn(
            self._refresh(env, store, refresh_quotas), "refresh what other brokers changed"
        )

    async def _refresh(
        self, env: Env, store: Transactions, refresh_quotas: Callable[[int], Awaitable[None]]
    ) -> None:
        """Load what other brokers have changed, until cancelled."""
        failing = False
        seen: int | None = None
        while True:
            await env.sleep(REFRESH_S)
            commits = store.commits()
            if commits is not None and commits == seen:
                continue
            try:
                stored = await store.transact(versions.versions)
                if self.acls is not None and stored.get(versions.ACLS, 0) != self.acls.version:
                    await self.acls.refresh()
                if self.tokens is not None:
                    await self.tokens.refresh_from(stored.get(versions.DELEGATION_TOKENS, 0))
                await refresh_quotas(stored.get(versions.CLIENT_QUOTAS, 0))
                failing, seen = False, commits
            except MetadataError as failure:
                if not failing:
                    failing = True
                    logger.error(
                        "access rules, delegation tokens and quotas cannot be refreshed, changes "
                        "by other brokers are not enforced here until that succeeds: %s", failure,
                    )  # fmt: skip

    async def close(self) -> None:
        """Stop refreshing and write the audit log."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        if self.tokens is not None:
            await self.tokens.close()
        await self.audit.close()


async def _open_acls(env: Env, store: Transactions, config: BrokerConfig) -> AclService | None:
    if not config.has_authorizer:
        return None
    from kafkawire.security.acls.service import AclService

    acls = AclService(env, store, config)
    await acls.open()
    return acls


async def _open_tokens(
    env: Env, store: Transactions, config: BrokerConfig
) -> DelegationTokens | None:
    if not config.delegation_token_secret_key:
        return None
    from kafkawire.security.delegation.service import DelegationTokens

    tokens = DelegationTokens(env, store, config)
    await tokens.open()
    return tokens
