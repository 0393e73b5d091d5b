"""An unknown user costs what a known one costs: the same hashes and HMACs, counted.

Covers: kafkawire.security.sasl.delegation, kafkawire.security.sasl.service.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kafkawire.codec.configs.listeners import ListenerConfig
from kafkawire.codec.configs.settings import BrokerConfig
from kafkawire.log.io.disk import real_env
from kafkawire.metadata.sql import open_metadata
from kafkawire.security.principals import Principal
from kafkawire.security.sasl import service
from kafkawire.security.sasl.credentials import CredentialChange, Credentials
from kafkawire.security.sasl.delegation import DelegationTokens
from kafkawire.security.sasl.plain import PLAIN
from kafkawire.security.sasl.replies import LoginFailure
from kafkawire.security.sasl.scram import Hash, derive
from kafkawire.security.sasl.service import LoginService
from tests.kit.sasl import ScramClient
from tests.kit.waiting import no_wait

KNOWN, STRANGER, IN_FILE = "alice", "bobby", "carol"
"""Names of equal length: an HMAC of a longer name may take one block more."""
NO_USERS = "no users in SQL"


class Work:
    """Counts what the functions of hashlib and hmac are called for, by algorithm and sizes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: Counter[tuple[object, ...]] = Counter()
        for module, name in (
            (hashlib, "pbkdf2_hmac"), (hashlib, "new"), (hmac, "digest"), (hmac, "compare_digest")
        ):  # fmt: skip
            monkeypatch.setattr(module, name, self._counted(name, getattr(module, name)))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            sizes = [len(each) if isinstance(each, bytes) else each for each in given]
            self.done[(name, *sizes)] += 1
            return function(*given)

        return counted

    def take(self) -> Counter[tuple[object, ...]]:
        """Return what was counted since the last call."""
        done, self.done = self.done, Counter()
        return done


@pytest.fixture(params=["SQL", "SQL and file", NO_USERS])
async def log_ins(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LoginService]:
    env, metadata = real_env(), open_metadata("", str(tmp_path))
    await metadata.open()
    credentials = Credentials(metadata, os.urandom, no_wait)
    await credentials.load()
    if request.param != NO_USERS:
        await credentials.alter(
            CredentialChange(KNOWN, kind, derive(kind, "secret", bytes(16), 4096)) for kind in Hash
        )
    settings = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"}
    if request.param != "SQL":
        file = tmp_path / "users"
        file.write_text(f"{IN_FILE}:secret\n")
        file.chmod(0o600)
        settings["sasl.plain.users.file"] = str(file)
    yield await LoginService.open(env, ListenerConfig(BrokerConfig(settings)), credentials)
    await metadata.close()
    env.offload.close()


@pytest.mark.parametrize("kind", list(Hash))
async def test_scram_of_stranger_is_the_work_of_a_user(
    log_ins: LoginService, kind: Hash, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "server_nonce", lambda _: "of-one-length")
    work = Work(monkeypatch)
    counted = []
    for user in (KNOWN, STRANGER):
        login, client = log_ins.start_login(kind.mechanism), ScramClient(user, "wrong", kind)
        first = await login.step(client.first)
        begun = work.take()
        last = client.last(first.token)
        work.take()  # of the client
        with pytest.raises(LoginFailure, match="unknown user or wrong password"):
            await login.step(last)
        counted.append((begun, work.take()))
    assert counted[0] == counted[1]
    called = [{str(key[0]) for key in each} for each in counted[0]]
    assert called == [{"digest"}, {"digest", "new", "compare_digest"}]


async def test_plain_of_stranger_is_the_work_of_a_user(
    log_ins: LoginService, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    counted = []
    for user in (KNOWN, IN_FILE, STRANGER):
        with pytest.raises(LoginFailure, match="unknown user or wrong password"):
            await log_ins.start_login(PLAIN).step(f"\0{user}\0wrong!".encode())
        # The length of the stored password decides nothing but the length of one comparison.
        counted.append(Counter(
            key[:1] if key[0] == "compare_digest" else key for key in work.take().elements()
        ))  # fmt: skip
    assert counted[0] == counted[1] == counted[2]
    derived = sum(number for key, number in counted[0].items() if key[0] == "pbkdf2_hmac")
    assert derived <= 1


async def test_password_of_the_file_needs_no_derivation(
    log_ins: LoginService, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(monkeypatch)
    with suppress(LoginFailure):  # without the file
        await log_ins.start_login(PLAIN).step(f"\0{IN_FILE}\0secret".encode())
        assert [key[0] for key in work.take()] == ["compare_digest"]


async def test_unknown_token_is_the_work_of_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, metadata = real_env(), open_metadata("", str(tmp_path))
    await metadata.open()
    config = BrokerConfig({"delegation.token.secret.key": "of this test"})
    tokens = DelegationTokens(env, metadata, config)
    owner = Principal("User", KNOWN)
    token = await tokens.create(owner, owner, (), -1)
    work = Work(monkeypatch)
    counted = []
    for token_id in (token.id, "x" * len(token.id)):
        found = await tokens.credential(Hash.SHA256, token_id)
        counted.append((work.take(), len(found.credential.salt), found.credential.iterations))
    assert counted[0] == counted[1]
    await metadata.close()
    env.offload.close()
