"""Log-in with the broker's users: what each may see, sessions, and wrong passwords.

Covers: kafkawire.console.pages.log_in, kafkawire.console.web.sessions,
kafkawire.console.views.rights.
"""

from __future__ import annotations

import re

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from kafkawire.client.security import ClientSecurity
from kafkawire.console.app import application
from kafkawire.console.views import snapshot
from kafkawire.console.web import sessions
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.console.web.sessions import (
    IDLE_S,
    MAX_FAILURES,
    SESSION_S,
    WRONG,
    NotLoggedIn,
    Sessions,
)
from kafkawire.testing import InProcessBroker
from tests.console.conftest import OWN, USERS, Browsers, Time
from tests.console.test_pages import check_page


def refused(browsers: Browsers, user: str, password: str, address: str = "127.0.0.1") -> int:
    """Return the status of a log-in that must fail, and check its sentence."""
    answer = browsers.open(address).post("/login", data={"user": user, "password": password})
    assert answer.status_code in (403, 429)
    assert not answer.cookies
    if answer.status_code == 403:
        assert WRONG in answer.text
    assert password not in answer.text
    return answer.status_code


def test_pages_need_a_session(browsers: Browsers) -> None:
    browser = browsers.open()
    answer = browser.get("/topics?q=%22x", follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Ftopics%3Fq%3D%2522x"
    for path in ("/", "/groups", "/samples", "/topics/seen", "/topics/seen/records", "/me"):
        assert browser.get(path, follow_redirects=False).status_code == 303, path
        answer = browser.get(path, headers={"sec-fetch-mode": "cors"})
        assert answer.status_code == 401, path
        assert "seen" not in answer.text.replace(path, "")
    cors = {"sec-fetch-mode": "cors", "accept": "text/event-stream"}
    assert browser.get("/events/overview", headers=cors).status_code == 401
    assert browser.get("/static/console.css").status_code == 200
    assert browser.get("/nothing").status_code == 404


def test_each_user_sees_what_the_rules_allow(browsers: Browsers) -> None:
    for user, other in (("ann", "bob"), ("bob", "ann")):
        browser = browsers.log_in(user)
        pages = [browser.get(path).text for path in ("/", "/topics", "/groups", "/me")]
        assert OWN[user] in pages[1]
        for text in pages:
            check_page(text)
            assert OWN[other] not in text
            assert user in text
        for path in (f"/topics/{OWN[other]}", f"/topics/{OWN[other]}/records"):
            absent = path.replace(OWN[other], "absent")
            found, missing = browser.get(path), browser.get(absent)
            assert (found.status_code, missing.status_code) == (404, 404)
            forms = re.compile(r'value="[0-9a-f]{64}"')
            assert forms.sub("", found.text) == forms.sub("", missing.text)


def test_rights_are_in_words(browsers: Browsers) -> None:
    text = browsers.log_in("ann").get("/me").text
    assert "You have no rights on the cluster." in text
    assert "You may describe and describe configs 1 topic: seen." in text
    assert re.search(
        r"You may read, write, [a-z, ]+ and alter configs \d+ topics?: ann-orders", text
    )


def test_cookie_is_of_this_host_only(secured: InProcessBroker) -> None:
    for secure, name in ((True, "__Host-kafkawire"), (False, "kafkawire")):
        options = ConsoleOptions(
            secured.addresses["SECURED"],
            ("127.0.0.1",),
            login=True,
            certificate="x" if secure else "",
        )
        base = f"{'https' if secure else 'http'}://127.0.0.1"
        form = {"user": "ann", "password": USERS["ann"]}
        app = application(options)
        with TestClient(app, base_url=base, headers={"origin": base}) as browser:
            answer = browser.post("/login", data=form, follow_redirects=False)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{name}=")
        wanted = {"httponly", "samesite=strict", "path=/", f"max-age={SESSION_S}"}
        parts = {part.strip().lower() for part in cookie.split(";")}
        assert parts >= wanted
        assert ("secure" in parts) is secure
        assert not any(part.startswith("domain") for part in parts)


@pytest.mark.parametrize(
    ("following", "location"),
    [
        ("/topics?q=a", "/topics?q=a"),
        ("", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/\r\nset-cookie: a=b", "/"),
        ("javascript:alert(1)", "/"),
    ],
)
def test_log_in_leads_to_own_pages_only(browsers: Browsers, following: str, location: str) -> None:
    form = {"user": "ann", "password": USERS["ann"], "next": following}
    answer = browsers.open().post("/login", data=form, follow_redirects=False)
    assert answer.headers["location"] == location


def test_log_in_needs_the_own_origin(browsers: Browsers) -> None:
    form = {"user": "ann", "password": USERS["ann"]}
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        answer = browsers.open().post("/login", data=form, headers=headers)
        assert answer.status_code == 403
        assert not answer.cookies


def test_wrong_user_and_wrong_password_are_one_error(browsers: Browsers) -> None:
    texts = set()
    for user, password in (("ann", "not-it"), ("nobody", "not-it"), ("ann\0bob", "not-it")):
        form = {"user": user, "password": password}
        answer = browsers.open(user).post("/login", data=form)
        assert answer.status_code == 403
        texts.add(answer.text)
    assert len(texts) == 1
    assert refused(browsers, "", "not-it") == 403
    assert refused(browsers, "ann", "x" * 1001) == 403


def test_failed_log_ins_of_an_address_are_limited(browsers: Browsers) -> None:
    for _ in range(MAX_FAILURES):
        assert refused(browsers, "ann", "not-it", "10.0.0.1") == 403
    assert refused(browsers, "ann", USERS["ann"], "10.0.0.1") == 429
    assert refused(browsers, "ann", "not-it", "10.0.0.2") == 403
    for number in range(MAX_FAILURES):  # all of a /64 network
        assert refused(browsers, "bob", "not-it", f"2001:db8::{number + 1}") == 403
    assert refused(browsers, "bob", "not-it", "2001:db8::ff") == 429
    browsers.time.now += sessions.FAILURES_S + 1
    assert refused(browsers, "ann", "not-it", "10.0.0.1") == 403


def test_successful_log_ins_are_not_limited(browsers: Browsers) -> None:
    for _ in range(MAX_FAILURES + 1):
        browsers.log_in("ann")


def test_session_has_a_new_id_and_ends(browsers: Browsers) -> None:
    browser = browsers.log_in("ann")
    first = browser.cookies["kafkawire"]
    form = {"user": "bob", "password": USERS["bob"]}
    browser.post("/login", data=form)
    assert browser.cookies["kafkawire"] != first
    old = browsers.open()
    old.cookies.set("kafkawire", first)
    assert old.get("/topics", follow_redirects=False).status_code == 303
    text = browser.get("/").text
    assert browser.post("/logout", data={"csrf": "0" * 64}).status_code == 403
    assert browser.get("/", follow_redirects=False).status_code == 200
    token = re.findall(r'name="csrf" value="([0-9a-f]{64})"', text)[0]
    kept = browser.cookies["kafkawire"]
    assert browser.post("/logout", data={"csrf": token}).status_code == 200
    browser.cookies.set("kafkawire", kept)
    assert browser.get("/", follow_redirects=False).status_code == 303


def test_session_ends_when_it_is_idle_and_after_its_time(browsers: Browsers) -> None:
    idle, used = browsers.log_in("ann"), browsers.log_in("bob")
    streaming = {"accept": "text/event-stream", "sec-fetch-mode": "cors"}
    for _ in range(SESSION_S // (IDLE_S // 2) - 1):
        browsers.time.now += IDLE_S // 2
        assert used.get("/topics", follow_redirects=False).status_code == 200
        idle.get("/samples", headers={"sec-fetch-mode": "cors"})  # an open page keeps nothing
    assert idle.get("/topics", follow_redirects=False).status_code == 303
    assert idle.get("/samples", headers=streaming).status_code == 401
    browsers.time.now += IDLE_S // 2
    assert used.get("/topics", follow_redirects=False).status_code == 303


def test_sessions_are_bounded(secured: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    found = Sessions(
        secured.addresses["SECURED"], ClientSecurity(), False, login=True, clock=Time()
    )
    ids = [found.log_in("ann", USERS["ann"], "127.0.0.1") for _ in range(2)]
    oldest = found.find(asked(ids[0]))
    found.find(asked(ids[1]))
    found.find(asked(ids[0]))
    third = found.log_in("bob", USERS["bob"], "127.0.0.1")
    with pytest.raises(NotLoggedIn):
        found.find(asked(ids[1]))
    assert found.find(asked(ids[0])) is oldest
    assert found.find(asked(third)).user == "bob"
    viewer = oldest.viewer
    with viewer.pool.lend() as lent:
        found.close()
        assert lent.nodes()
    with pytest.raises(OSError, match=r"closed|Bad file"):
        lent.first._socket.getpeername()


def asked(identity: str) -> Request:
    """Return a request with a cookie."""
    headers = [(b"cookie", f"kafkawire={identity}".encode())]
    return Request({"type": "http", "method": "GET", "headers": headers})


def test_stream_of_an_ended_session_ends(
    browsers: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "FRESH_S", 0.0)
    browser = browsers.log_in("ann")
    find = Sessions.find
    calls: list[int] = []

    def find_then_end(self: Sessions, request: Request) -> sessions.UserSession:
        calls.append(1)
        if len(calls) > 3:  # after the check of the route and the first parts
            self.end(request)
        return find(self, request)

    monkeypatch.setattr(Sessions, "find", find_then_end)
    text = browser.get("/events/overview", headers={"accept": "text/event-stream"}).text
    assert text.startswith("data: ")


def test_without_log_in_there_is_no_form(pages: TestClient) -> None:
    assert pages.get("/login").status_code == 404
    answer = pages.post("/login", data={}, headers={"origin": "http://127.0.0.1:8080"})
    assert answer.status_code == 404
    assert "has no log-in" in pages.get("/me").text
    assert "Log out" not in pages.get("/").text
