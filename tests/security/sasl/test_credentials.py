"""Credentials in SQL and in memory, and what unknown users get instead."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kafkawire.metadata.sql import open_metadata
from kafkawire.security.sasl.credentials import CredentialChange, Credentials, new_salt
from kafkawire.security.sasl.scram import Hash, ScramCredential, UserCredential
from tests.kit.postgres import new_database
from tests.kit.waiting import no_wait, ticks


def credential(iterations: int = 8192, salt: bytes = b"0123456789") -> ScramCredential:
    return ScramCredential(salt, b"stored", b"server", iterations)


async def check(url: str, folder: str) -> None:
    store = open_metadata(url, folder)
    await store.open()
    users, other = (Credentials(store, os.urandom, no_wait) for _ in range(2))
    await users.load()
    await other.load()
    deleted: list[set[str]] = []
    other.when_deleted(deleted.append)
    users.when_deleted(deleted.append)
    made = credential()
    await users.alter(
        [CredentialChange("a", Hash.SHA256, made), CredentialChange("a", Hash.SHA512, made)]
    )
    assert users.users == {"a": {Hash.SHA256: made, Hash.SHA512: made}}
    assert other.users == {}
    assert other.find(Hash.SHA256, "x").credential.salt == (
        Credentials.find(other, Hash.SHA256, "x").credential.salt
    )
    await other.refresh()
    assert other.users == users.users
    # the same salt for a stranger on every broker
    strangers = {each.find(Hash.SHA256, "x").credential for each in (users, other)}
    assert len(strangers) == 1
    await other.alter([CredentialChange("b", Hash.SHA256, credential(4096))])
    await users.alter([CredentialChange("a", Hash.SHA512, None)])  # has missed a version
    assert users.users == {"a": {Hash.SHA256: made}, "b": {Hash.SHA256: credential(4096)}}
    assert deleted == []
    await users.alter([CredentialChange("a", Hash.SHA256, None)])
    await other.refresh()
    assert deleted == [{"a"}, {"a"}]
    assert list(users.users) == list(other.users) == ["b"]
    await store.close()


async def test_changes_are_stored_and_seen_by_others(tmp_path: Path) -> None:
    await check("", str(tmp_path))


@pytest.mark.real
async def test_changes_are_stored_in_postgres(postgres_url: str) -> None:
    await check(await new_database(postgres_url), "")


async def test_refresh_in_slices_shows_old_or_new_users(tmp_path: Path) -> None:
    """Also with a change that arrives meanwhile, which is applied after it."""
    seen: list[dict[str, int]] = []
    altering: list[asyncio.Task[None]] = []
    late: list[CredentialChange] = []

    async def watched() -> None:
        seen.append({name: len(kinds) for name, kinds in users.users.items()})
        if late and len(seen) == 5:
            altering.append(asyncio.ensure_future(users.alter(late)))
        await ticks(1)

    store = open_metadata("", str(tmp_path))
    await store.open()
    users = Credentials(store, os.urandom, watched)
    other = Credentials(store, os.urandom, no_wait)
    kinds = Hash.SHA256, Hash.SHA512
    names = [f"user-{number}" for number in range(20)]
    made = [CredentialChange(name, kind, credential()) for name in names for kind in kinds]
    await other.load()
    await other.alter(made)
    await users.load()
    deleted: list[set[str]] = []
    users.when_deleted(deleted.append)
    await other.alter(CredentialChange(name, kind, None) for name in names[:10] for kind in kinds)
    await other.alter([CredentialChange("new", Hash.SHA256, credential())])
    seen.clear()
    late.append(CredentialChange("late", Hash.SHA256, credential()))
    late.append(CredentialChange("user-19", Hash.SHA256, None))
    await users.refresh()
    before, after = dict.fromkeys(names, 2), {**dict.fromkeys(names[10:], 2), "new": 1}
    assert before in seen
    assert after in seen
    assert all(each in (before, after) for each in seen)
    assert deleted == [set(names[:10])]
    await altering[0]
    assert users.users.keys() == {*names[10:], "new", "late"}
    assert list(users.users["user-19"]) == [Hash.SHA512]
    assert (await users.names()).keys() == users.users.keys()
    await other.refresh()
    assert other.users == users.users
    await store.close()


async def test_stranger_looks_like_most_users(tmp_path: Path) -> None:
    store = open_metadata("", str(tmp_path))
    await store.open()
    users = Credentials(store, os.urandom, no_wait)
    await users.load()
    found = users.find(Hash.SHA256, "x")
    assert not found.known
    assert (found.credential.iterations, len(found.credential.salt)) == (4096, 26)
    assert found.credential.salt.isalnum()
    assert users.any_kind("x")[0] is Hash.SHA256
    binary = credential(8192, bytes(range(200, 240)) * 3)
    await users.alter(
        [CredentialChange(name, Hash.SHA512, binary) for name in "ab"]
        + [CredentialChange("c", Hash.SHA512, credential())]
    )
    kind, found = users.any_kind("x")
    assert kind is Hash.SHA512
    assert (found.known, found.credential.iterations, len(found.credential.salt)) == (
        False, 8192, 120,
    )  # fmt: skip
    assert users.any_kind("a") == (Hash.SHA512, UserCredential(binary, True))
    assert users.find(Hash.SHA512, "y").credential.salt != found.credential.salt
    await store.close()


def test_salts_have_26_digits() -> None:
    assert new_salt(lambda _: 0) == b"0" * 26
    assert len(new_salt(lambda bits: (1 << bits) - 1)) == 26
