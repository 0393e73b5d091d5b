"""Users of the broker over HTTP: two with different ACLs, wrong passwords, and the cache of users.

Covers: kafkawire.console.api.users.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from kafkawire.client.errors import LoginRefused
from kafkawire.client.security import security_of
from kafkawire.console.api import users as module
from kafkawire.console.api.users import BasicUsers
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.console.web.sessions import MAX_FAILURES, FailureLimit, LoginFailed
from kafkawire.testing import InProcessBroker, broker, create_topic
from kafkawire.testing.secured import SECURED
from tests.console.api.conftest import console, curl

HERE = "192.0.2.7"
USERS = {"alice": "a-secret", "bob": "b:secret"}
ACLS = [
    ("alice", "Write", "topic:orders"), ("alice", "Read", "topic:orders"),
    ("alice", "Read", "group:*"), ("bob", "Read", "topic:orders"), ("bob", "Write", "topic:others"),
]  # fmt: skip


@pytest.fixture(scope="module")
def secured() -> Iterator[InProcessBroker]:
    with broker(users=USERS, acls=ACLS) as started:
        for name in ("orders", "hidden"):
            create_topic(started.bootstrap, name)
        yield started


def settings_of(secured: InProcessBroker) -> dict[str, str]:
    found = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    return {**found, "sasl.username": "bob", "sasl.password": USERS["bob"]}


@pytest.fixture(scope="module")
def url(secured: InProcessBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a console that is bob without a log-in."""
    file = Path(tmp_path_factory.mktemp("console")) / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings_of(secured).items()))
    address = secured.addresses[SECURED]
    with console(address, "--allow-changes", "--command-config", str(file)) as found:
        yield found


def as_user(name: str, password: str = "") -> list[str]:
    return ["--user", f"{name}:{password or USERS[name]}"]


@pytest.mark.real
def test_acls_of_two_users_decide(url: str) -> None:
    path = f"{url}/api/topics/orders/records"
    one = {"records": [{"value": "x"}]}
    assert curl(path, *as_user("alice"), data=one)["records"][0]["offset"] == 0
    assert len(curl(f"{path}?where=oldest", *as_user("alice"))["records"]) == 1
    assert len(curl(f"{path}?where=oldest", *as_user("bob"))["records"]) == 1
    refused = curl(path, *as_user("bob"), data=one, status=403)
    assert "TOPIC_AUTHORIZATION_FAILED" in refused["error"]
    assert curl(path, data=one, status=403)["error"], "without a log-in: the console's own user"
    for name in USERS:
        listed = curl(f"{url}/api/topics", *as_user(name))["topics"]
        assert [each["name"] for each in listed] == ["orders"]
        curl(f"{url}/api/topics/hidden", *as_user(name), status=404)
        curl(f"{url}/api/topics/hidden/events", *as_user(name), status=404)
        curl(f"{url}/api/topics/hidden", "-X", "DELETE", *as_user(name), status=403)
        curl(f"{url}/api/topics", *as_user(name), data={"name": "new"}, status=403)


@pytest.mark.real
def test_wrong_passwords_are_refused(url: str) -> None:
    for user, password in (("alice", "wrong"), ("nobody", "wrong")):
        answer = curl(f"{url}/api/topics", *as_user(user, password), status=401)
        assert answer["error"] == "User or password is wrong."
    for header in ("Basic", "Basic !", "Bearer x", "Basic " + "YQ==" * 1000):
        curl(f"{url}/api/topics", "-H", f"Authorization: {header}", status=401)


@pytest.mark.real
def test_sockets_have_the_rights_of_their_user(url: str) -> None:
    address = f"ws{url.removeprefix('http')}/api/topics/orders/socket?group=g"
    token = b64encode(b"alice:a-secret").decode()
    headers = {"Authorization": f"Basic {token}"}
    with connect(address, additional_headers=headers, proxy=None) as socket:
        assert "assigned" in socket.recv(timeout=60)
    with connect(address, proxy=None) as socket:  # bob has no right to the group
        assert "GROUP_AUTHORIZATION_FAILED" in socket.recv(timeout=60)
    headers["Authorization"] = "Basic eDp4"
    with pytest.raises(InvalidStatus) as refused:
        connect(address, additional_headers=headers, proxy=None)
    assert refused.value.response.status_code == 401


@pytest.mark.real
def test_console_with_a_log_in_asks_programs_for_a_user(
    secured: InProcessBroker, tmp_path: Path
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n")
    options = ("--login", "--command-config", str(file))
    with console(secured.addresses[SECURED], *options) as url:
        for path in ("/api/topics", "/api/topics/orders/events", "/api/tier"):
            assert curl(url + path, status=401)["error"]
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws{url.removeprefix('http')}/api/topics/orders/socket", proxy=None)
        assert refused.value.response.status_code == 401
        assert curl(f"{url}/api/topics", *as_user("alice"))["topics"]


async def test_users_are_kept_and_checked_again(
    secured: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_USERS", 1)
    now = 0.0
    security = security_of(settings_of(secured))
    options = ConsoleOptions(secured.addresses[SECURED], (), security, True)
    failures = FailureLimit(lambda: now)
    users = BasicUsers(options, failures, lambda: now)
    log_ins: list[Any] = []
    log_in = users._log_in

    def count(*each: str) -> Any:
        log_ins.append(each)
        return log_in(*each)

    monkeypatch.setattr(users, "_log_in", count)
    alice, bob = ("Basic " + b64encode(f"{name}:{USERS[name]}".encode()).decode() for name in USERS)
    first = await users.viewer(alice, HERE)
    assert await users.viewer(alice, HERE) is first
    assert len(log_ins) == 1
    now += module.CHECK_S
    assert await users.viewer(alice, HERE) is first
    assert len(log_ins) == 2, "a password may have been changed"
    await users.viewer(bob, HERE)
    assert await users.viewer(alice, HERE) is not first, "there is room for one"
    wrong = "Basic " + b64encode(b"alice:other").decode()
    for _ in range(MAX_FAILURES):
        with pytest.raises(LoginRefused):
            await users.viewer(wrong, HERE)
    with pytest.raises(LoginFailed, match="wait a minute"):
        await users.viewer(wrong, HERE)
    assert await users.viewer(alice, HERE), "one that is known is no attempt"
    with pytest.raises(LoginFailed):
        failures.begin(HERE)  # of a page
    assert await users.viewer(bob, "192.0.2.1")
    users.close()
