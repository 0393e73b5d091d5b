"""Creates the server's side of log-ins from the settings, the users file and the credentials."""

from __future__ import annotations

import hmac
from functools import partial
from typing import TYPE_CHECKING

from kafkawire.extras import install_line
from kafkawire.log.io.shared_load import SharedLoad
from kafkawire.security.sasl.bearer import OAUTHBEARER, Bearer, Validate
from kafkawire.security.sasl.plain import PLAIN, Plain
from kafkawire.security.sasl.replies import Mechanism, Overloaded
from kafkawire.security.sasl.scram import MECHANISMS, Scram, matches, server_nonce
from kafkawire.security.sasl.users_file import UsersFile

if TYPE_CHECKING:
    from kafkawire.codec.configs.listeners import ListenerConfig
    from kafkawire.codec.configs.settings import BrokerConfig
    from kafkawire.log.io.ports import Env
    from kafkawire.security.sasl.credentials import Credentials
    from kafkawire.security.sasl.delegation import DelegationTokens

MAX_DERIVING = 64
"""Log-ins with PLAIN that wait for the derivation of keys: half a second of two threads. Further
ones are disconnected, and try again."""
CHECK_FILE_S = 1.0
"""How often the users file is checked for changes, while clients log in."""


class LoginSettingsError(ValueError):
    """Log-ins cannot be served with these settings; one sentence."""


class LoginService:
    """The mechanisms of listeners with the same settings. Create it with `open`."""

    def __init__(
        self,
        env: Env,
        config: ListenerConfig,
        credentials: Credentials,
        file: UsersFile | None,
        validate: Validate | None,
        tokens: DelegationTokens | None,
    ) -> None:
        self._env = env
        self._config = config
        self._credentials = credentials
        self._file = file
        self._checking = SharedLoad(env, "check the users file", self._reload, CHECK_FILE_S)
        self._validate = validate
        self._tokens = tokens
        self._deriving = 0

    @classmethod
    async def open(
        cls,
        env: Env,
        listener: ListenerConfig,
        credentials: Credentials,
        tokens: DelegationTokens | None = None,
    ) -> LoginService:
        """Read what the enabled mechanisms need. `tokens`: None without delegation tokens. Raises
        LoginSettingsError."""
        file, validate = None, None
        config = listener.config
        if not config.sasl_enabled_mechanisms:
            raise LoginSettingsError("sasl.enabled.mechanisms: no mechanism is enabled")
        if config.sasl_plain_users_file and PLAIN in config.sasl_enabled_mechanisms:
            try:
                file = await env.offload.submit("files", UsersFile, config.sasl_plain_users_file)
            except ValueError as wrong:
                raise LoginSettingsError(f"sasl.plain.users.file: {wrong}") from None
        if OAUTHBEARER in config.sasl_enabled_mechanisms:
            validate = await env.offload.submit(
                "files", _validator, env, listener.of_mechanism(OAUTHBEARER)
            )
        return cls(env, listener, credentials, file, validate, tokens)

    @property
    def mechanisms(self) -> list[str]:
        """The enabled mechanisms."""
        return self._config.config.sasl_enabled_mechanisms

    @property
    def max_receive_bytes(self) -> int:
        """The largest frame of a client that is not logged in."""
        return self._config.config.sasl_server_max_receive_size

    def session_ms(self, mechanism: str) -> int | None:
        """Return how long a log-in is valid; None: without a limit."""
        return self._config.of_mechanism(mechanism).connections_max_reauth_ms or None

    def start_login(self, mechanism: str) -> Mechanism:
        """Begin a log-in with an enabled mechanism."""
        if mechanism == PLAIN:
            return Plain(self._has_password)
        if mechanism == OAUTHBEARER:
            assert self._validate is not None, "opened with it"
            return Bearer(self._validate)
        kind = MECHANISMS[mechanism]
        nonce = server_nonce(self._env.random.getrandbits)
        tokens = self._tokens
        find_token = None if tokens is None else partial(tokens.credential, kind)
        return Scram(kind, partial(self._credentials.find, kind), nonce, find_token)

    async def _has_password(self, user: str, password: str) -> bool:
        await self._check_file()
        stored = self._file.users.get(user, "") if self._file is not None else ""
        if hmac.compare_digest(stored.encode(), password.encode()):
            return True  # no password is empty
        if not self._credentials.users:
            return False  # the file has all users: there is no derivation for any of them
        # For a user of the file, too: otherwise its answer would come earlier than a stranger's.
        if self._deriving >= MAX_DERIVING:
            raise Overloaded
        self._deriving += 1
        try:
            kind, found = self._credentials.any_kind(user)
            same = await self._env.offload.submit(
                "passwords", matches, kind, password, found.credential
            )
        finally:
            self._deriving -= 1
        return same and found.known and not stored

    async def _check_file(self) -> None:
        """Read the users file again if it has changed."""
        if self._file is not None:
            await self._checking.recent()

    async def _reload(self) -> None:
        assert self._file is not None, "it is checked"
        await self._env.offload.submit("files", self._file.reload)


def _validator(env: Env, config: BrokerConfig) -> Validate:
    """Import what checks tokens: a tenth of a second. Raises LoginSettingsError."""
    url = config.sasl_oauthbearer_jwks_endpoint_url.strip()
    name = "sasl.oauthbearer.jwks.endpoint.url"
    if not url:
        raise LoginSettingsError(f"{name}: OAUTHBEARER is enabled, so it must be set")
    try:
        from kafkawire.security.sasl.tokens import (
            KeyRows,
            KeySource,
            TokenRules,
            TokenValidator,
            check_source,
            read_keys,
        )
    except ImportError:
        raise LoginSettingsError(
            f"sasl.enabled.mechanisms: OAUTHBEARER needs joserfc: {install_line('oauth')}"
        ) from None
    try:
        check_source(url)
    except ValueError as wrong:
        raise LoginSettingsError(f"{name}={url}: {wrong}") from None

    async def read() -> KeyRows:
        return await env.offload.submit("issuer", read_keys, url)

    refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
    keys = KeySource(url, read, env.clock.monotonic, refresh_s)
    rules = TokenRules(
        frozenset(config.sasl_oauthbearer_expected_audience),
        config.sasl_oauthbearer_expected_issuer,
        frozenset(config.sasl_oauthbearer_required_scopes),
        config.sasl_oauthbearer_sub_claim_name,
        config.sasl_oauthbearer_scope_claim_name,
        config.sasl_oauthbearer_clock_skew_seconds,
    )
    return TokenValidator(rules, keys.find, env.clock.now_ms).validate
