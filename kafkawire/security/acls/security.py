"""The parts of a broker's security: audit log, access rules, delegation tokens, and what refreshes
them.

Opened by the broker before it serves, closed after the last request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kafkawire.security import versions
from kafkawire.security.audit import Audit, NoAudit, open_audit
from kafkawire.security.following import Following, Refresh

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.metadata.store import Transactions
    from kafkawire.security.acls.service import AclService
    from kafkawire.security.sasl.delegation import DelegationTokens


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
        self._following: Following | None = None
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

    async def start_refresh(
        self,
        env: Env,
        store: Transactions,
        refresh: Mapping[str, Refresh],
        node_id: int = 0,
        others: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Start to load what other brokers change. `refresh`: by table, for tables of others;
        `others` returns the other brokers of the cluster that are alive."""
        every = dict(refresh)
        if self.acls is not None:
            every[versions.ACLS] = self.acls.refresh_from
        if self.tokens is not None:
            every[versions.DELEGATION_TOKENS] = self.tokens.refresh_from
        self._following = Following(env, store, every, node_id, others)
        self._refreshing = env.spawn(self._following.run(), "refresh what other brokers changed")

    async def wait_until_enforced(self) -> None:
        """Return when the other brokers, too, enforce what was changed until now: they are waited
        for before a change is answered, for MAX_WAIT_S at most. Never raises for SQL."""
        if self._following is not None:
            await self._following.wait()

    async def close(self) -> None:
        """Stop refreshing and write the audit log."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        if self._following is not None:
            await self._following.close()
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
    from kafkawire.security.sasl.delegation import DelegationTokens

    tokens = DelegationTokens(env, store, config)
    await tokens.open()
    return tokens
