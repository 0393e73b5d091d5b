"""Changes through the pages: rights, tokens, what others changed meanwhile, and the log.

Covers: kafkawire.console.pages.actions, kafkawire.console.views.actions,
kafkawire.console.views.plans, kafkawire.console.views.topic_actions,
kafkawire.console.views.group_actions, kafkawire.console.views.record_actions.
"""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

import httpx2
import pytest
from confluent_kafka import Producer
from starlette.testclient import TestClient

from kafkawire.client.admin import create_topic as create
from kafkawire.client.admin import delete_topics, topic_settings
from kafkawire.client.cluster import Cluster
from kafkawire.client.configs import SET, TOPIC, alter
from kafkawire.client.errors import BrokerError
from kafkawire.client.fetching import fetch
from kafkawire.client.offsets import (
    READ_COMMITTED,
    call_coordinator,
    commit,
    fetch_committed_offsets,
    leaders,
    list_offsets,
)
from kafkawire.client.producer import append
from kafkawire.codec.batches import Record, pack, records
from kafkawire.console.app import application
from kafkawire.console.pages.actions import read_field
from kafkawire.console.views import group_actions
from kafkawire.console.views.actions import ACTIONS, Actor, apply_change, plan_change
from kafkawire.console.views.plans import NotAllowed
from kafkawire.console.views.record_actions import field_of
from kafkawire.console.web.frame import ConsoleOptions
from kafkawire.console.web.sessions import PLAN_S
from kafkawire.testing import InProcessBroker
from tests.console.conftest import ORIGIN, OWN, Browsers, console_of
from tests.console.test_pages import HOSTILE, check_page

GROUP = "ann-group"
TOPIC_FORMS: Mapping[str, Mapping[str, str]] = {
    "create-topic": {"topic": "ann-orders-new", "partitions": "3", "settings": "retention.ms=1s"},
    "topic-settings": {"topic": OWN["ann"], "set": "retention.ms=5s", "unset": "segment.ms"},
    "add-partitions": {"topic": OWN["ann"], "total": "5"},
    "delete-records": {"topic": OWN["ann"], "what": "all records"},
    "produce": {
        "topic": OWN["ann"],
        "key": "k",
        "value": "secret-value",
        "headers": '[["h", "x"]]',
    },
    "delete-topic": {"topic": OWN["ann"]},
}
FORMS: Mapping[str, Mapping[str, str]] = {
    **TOPIC_FORMS,
    "reset-offsets": {"group": GROUP, "target": "latest"},
    "delete-group": {"group": GROUP},
}
CONFIRMED = ("delete-records", "delete-topic", "reset-offsets", "delete-group")


@pytest.fixture
def owned(secured: InProcessBroker) -> Iterator[Cluster]:
    """The broker as the test, which may do everything; ann's topic and group as they are first."""
    with Cluster(secured.bootstrap) as cluster:
        names = [row.name for row in cluster.metadata(None).topics]
        mine = [name for name in names if name.startswith(OWN["ann"])]
        if mine:
            delete_topics(cluster, mine)
        create(cluster, OWN["ann"], 2, {"segment.ms": "60000"})
        place = OWN["ann"], 0
        node = leaders(cluster, [OWN["ann"]])[place]
        append(cluster, node, {place: pack([Record(i, 0, b"k", b"v", []) for i in range(10)])})
        codes = call_coordinator(lambda: commit(cluster, GROUP, {place: 4}))
        assert set(codes.values()) == {0}
        yield cluster
        with suppress(BrokerError):  # it was deleted, and other tests have it, too
            create(cluster, OWN["ann"], 2, {})


def csrf(browser: TestClient) -> str:
    """Return the token of the forms of a session."""
    text = browser.get("/me").text + browser.get("/change/create-topic").text
    (token,) = set(re.findall(r'name="csrf" value="([0-9a-f]{64})"', text))
    return str(token)


def plan(browser: TestClient, action: str, form: Mapping[str, str]) -> httpx2.Response:
    """Ask for the plan of a change."""
    return browser.post(f"/change/{action}", data={"csrf": csrf(browser), **form})


def sealed(answer: httpx2.Response) -> str:
    """Return the token of a plan."""
    assert answer.status_code == 200, answer.text
    check_page(answer.text)
    return html.unescape(re.findall(r'name="plan" value="([^"]+)"', answer.text)[0])


def make(
    browser: TestClient, action: str, form: Mapping[str, str], token: str = ""
) -> httpx2.Response:
    """Plan a change, and apply it."""
    token = token or sealed(plan(browser, action, form))
    confirm = form.get(ACTIONS[action].confirm, "")
    return browser.post("/apply", data={"csrf": csrf(browser), "plan": token, "confirm": confirm})


@pytest.mark.parametrize("action", FORMS)
def test_changes_are_made_and_logged(
    owned: Cluster, browsers: Browsers, action: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answer = make(browsers.log_in("ann"), action, FORMS[action])
    assert answer.status_code == 200, answer.text
    check_page(answer.text)
    (line,) = [row for row in caplog.messages if row.startswith("change ")]
    found = json.loads(line.removeprefix("change "))
    assert (found["user"], found["address"]) == ("ann", "127.0.0.1")
    assert (found["action"], found["outcome"]) == (action, "made")
    assert "secret" not in "".join(caplog.messages)
    topic, places = OWN["ann"], {(OWN["ann"], 0): -2, (OWN["ann"], 1): -1}
    if action == "create-topic":
        assert topic_settings(owned, "ann-orders-new") == {"retention.ms": "1000"}
        assert len(leaders(owned, ["ann-orders-new"])) == 3
    elif action == "topic-settings":
        assert topic_settings(owned, topic) == {"retention.ms": "5000"}
        assert found["before"]["segment.ms"] == "60000 (from topic)"
        assert found["after"]["settings"] == {"segment.ms": None, "retention.ms": "5000"}
    elif action == "add-partitions":
        assert len(leaders(owned, [topic])) == 5
    elif action == "delete-records":
        assert list_offsets(owned, places, leaders(owned, [topic]))[topic, 0] == 10
    elif action == "produce":
        ends = list_offsets(owned, dict.fromkeys(places, -1), leaders(owned, [topic]))
        assert sum(ends.values()) == 11
    elif action == "delete-topic":
        with pytest.raises(BrokerError):
            leaders(owned, [topic])
    elif action == "reset-offsets":
        assert fetch_committed_offsets(owned, GROUP)[topic, 0][0] == 10
        assert found["before"][f"{topic}:0"] == 4
    else:
        assert fetch_committed_offsets(owned, GROUP) == {}


@pytest.mark.parametrize("action", FORMS)
@pytest.mark.parametrize(("user", "allowed"), [("ann", False), ("bob", True), ("bob", False)])
def test_matrix_of_actions_and_rights(
    owned: Cluster, secured: InProcessBroker, action: str, user: str, allowed: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A token that is right in every other way changes nothing without the right."""
    form, confirm = FORMS[action], FORMS[action].get(ACTIONS[action].confirm, "")
    with Cluster(secured.bootstrap) as cluster:  # a plan of one who may do everything
        parsed = {
            field.name: read_field(field, form.get(field.name, ""))
            for field in ACTIONS[action].fields
        }
        found = plan_change(cluster, Actor("", "", True), action, parsed)
    before = state(owned)
    with console_of(secured, allow_changes=allowed) as browsers:
        browser = browsers.log_in(user)
        (session,) = browsers.sessions._found.values()
        token = session.seal(
            {"action": action, "change": found.change, "seen": found.seen, "confirm": confirm}
        )
        caplog.set_level(logging.INFO)
        answer = make(browser, action, form, token)
        planned = plan(browser, action, form)
    assert answer.status_code == (403 if not allowed else 404 if action != "create-topic" else 403)
    assert planned.status_code == answer.status_code
    if not allowed:
        assert "only reads" in answer.text
    assert state(owned) == before
    assert '"outcome": "made"' not in caplog.text


def state(cluster: Cluster) -> object:
    """Return all that the actions change."""
    topics = [row for row in cluster.metadata(None).topics if row.name.startswith("ann")]
    led_by = {(row.name, p.partition_index): p.leader_id for row in topics for p in row.partitions}
    return (
        {row.name: row.topic_id for row in topics},
        [list_offsets(cluster, dict.fromkeys(led_by, at), led_by) for at in (-1, -2)],
        {row.name: topic_settings(cluster, row.name) for row in topics},
        fetch_committed_offsets(cluster, GROUP),
    )


@pytest.mark.parametrize("action", ["topic-settings", "add-partitions", "delete-records",
                                    "delete-topic", "produce"])  # fmt: skip
def test_user_who_may_only_see_is_refused_by_the_broker(
    owned: Cluster, browsers: Browsers, action: str
) -> None:
    form = {**FORMS[action], "topic": "seen"}
    if action == "topic-settings":
        form["unset"] = ""
    if action == "delete-records":
        form["offset"] = ""
    browser = browsers.log_in("ann")
    answer = plan(browser, action, form)
    if answer.status_code == 200:  # the broker checks some rights only when it acts
        answer = make(browser, action, form, sealed(answer))
    assert answer.status_code == 403
    assert "TOPIC_AUTHORIZATION_FAILED" in answer.text
    assert len(leaders(owned, ["seen"])) == 2
    assert topic_settings(owned, "seen") == {}


def test_acting_function_checks_by_itself(owned: Cluster) -> None:
    for action in ACTIONS:
        with pytest.raises(NotAllowed):
            apply_change(owned, Actor("ann", "", False), action, {}, {})
        with pytest.raises(NotAllowed):
            plan_change(owned, Actor("ann", "", False), action, {})


def test_forms_are_shown_only_with_changes(owned: Cluster, secured: InProcessBroker) -> None:
    paths = ("/topics", f"/topics/{OWN['ann']}", f"/group?name={GROUP}",
             f"/topics/{OWN['ann']}/records?where=oldest")  # fmt: skip
    for allowed in (True, False):
        with console_of(secured, allow_changes=allowed) as browsers:
            browser = browsers.log_in("ann")
            for path in paths:
                assert ("/change/" in browser.get(path).text) is allowed, path
            for action in ACTIONS:
                answer = browser.get(f"/change/{action}?topic={OWN['ann']}&group={GROUP}")
                assert answer.status_code == (200 if allowed else 403), action
                check_page(answer.text)
                assert (f'action="/change/{action}"' in answer.text) is allowed


@pytest.mark.parametrize(
    ("headers", "token", "status"),
    [
        ({}, None, 403),
        ({}, "", 403),
        ({}, "0" * 64, 403),
        ({}, "\u20ac", 403),
        ({"origin": "http://evil.example"}, "right", 403),
        ({"origin": "null"}, "right", 403),
        ({"sec-fetch-site": "cross-site"}, "right", 403),
        ({"content-type": "text/plain"}, "right", 400),
        ({"content-type": "application/json"}, "right", 400),
        ({}, "right", 200),
    ],
)
def test_forms_of_others_are_refused(
    owned: Cluster, browsers: Browsers, headers: dict[str, str], token: str | None, status: int
) -> None:
    browser = browsers.log_in("ann")
    form = dict(FORMS["add-partitions"])
    if token is not None:
        form["csrf"] = csrf(browser) if token == "right" else token
    assert browser.post("/change/add-partitions", data=form, headers=headers).status_code == status
    token_of_plan = sealed(plan(browser, "add-partitions", FORMS["add-partitions"]))
    sent = {**form, "plan": token_of_plan}
    assert browser.post("/apply", data=sent, headers=headers).status_code == status


def test_tokens_are_of_one_session_and_one_use(owned: Cluster, browsers: Browsers) -> None:
    ann, again, bob = browsers.log_in("ann"), browsers.log_in("ann"), browsers.log_in("bob")
    form = FORMS["produce"]
    token = sealed(plan(ann, "produce", form))
    for other in (again, bob):
        assert make(other, "produce", form, token).status_code == 403
        own = {"csrf": csrf(ann), "plan": token}
        assert other.post("/apply", data=own).status_code == 403
    other_end = token[:-1] + ("1" if token.endswith("0") else "0")
    for changed in ("", "x", other_end, "A" + token, token.partition(".")[0] + ".", "é.é"):
        assert make(ann, "produce", form, changed or "-").status_code == 403
    assert make(ann, "produce", form, token).status_code == 200
    answer = make(ann, "produce", form, token)
    assert answer.status_code == 403
    assert "applied already" in answer.text
    late = sealed(plan(ann, "produce", form))
    browsers.time.now += PLAN_S
    assert "too old" in make(ann, "produce", form, late).text


def test_second_of_two_people_sees_the_difference(owned: Cluster, browsers: Browsers) -> None:
    first, second = browsers.log_in("ann"), browsers.log_in("ann")
    topic = OWN["ann"]
    mine, theirs = (
        {"topic": topic, "set": "retention.ms=1"},
        {"topic": topic, "set": "retention.ms=2"},
    )
    token = sealed(plan(second, "topic-settings", theirs))
    assert make(first, "topic-settings", mine).status_code == 200
    answer = make(second, "topic-settings", theirs, token)
    assert answer.status_code == 409
    check_page(answer.text)
    assert "1 (from topic)" in answer.text
    assert topic_settings(owned, topic)["retention.ms"] == "1"
    answer = make(second, "topic-settings", theirs)
    assert answer.status_code == 200
    assert topic_settings(owned, topic)["retention.ms"] == "2"


def test_group_that_moved_since_the_plan_is_not_reset(owned: Cluster, browsers: Browsers) -> None:
    browser, form = browsers.log_in("ann"), FORMS["reset-offsets"]
    shown = plan(browser, "reset-offsets", form)
    assert "6 skipped" in shown.text
    commit(owned, GROUP, {(OWN["ann"], 0): 7})
    answer = make(browser, "reset-offsets", form, sealed(shown))
    assert answer.status_code == 409
    assert fetch_committed_offsets(owned, GROUP)[OWN["ann"], 0][0] == 7
    back = {"group": GROUP, "target": "shift", "shift": "-5"}
    assert "5 read again" in plan(browser, "reset-offsets", back).text


def test_topic_that_was_made_again_is_not_deleted(owned: Cluster, browsers: Browsers) -> None:
    browser, topic = browsers.log_in("ann"), OWN["ann"]
    token = sealed(plan(browser, "delete-topic", {"topic": topic}))
    assert make(browser, "delete-topic", {"topic": topic}).status_code == 200
    create(owned, topic, 2, {})
    answer = make(browser, "delete-topic", {"topic": topic}, token)
    assert answer.status_code == 409
    assert "topic id" in answer.text
    assert len(leaders(owned, [topic])) == 2


@pytest.mark.parametrize("action", CONFIRMED)
def test_names_are_typed_to_confirm(owned: Cluster, browsers: Browsers, action: str) -> None:
    browser, before = browsers.log_in("ann"), state(owned)
    token = sealed(plan(browser, action, FORMS[action]))
    for confirm in ({}, {"confirm": "other"}):
        form = {"csrf": csrf(browser), "plan": token, **confirm}
        assert browser.post("/apply", data=form).status_code in (400, 403)
    assert state(owned) == before


@pytest.mark.parametrize(
    ("action", "form", "status"),
    [
        ("create-topic", {"topic": ""}, 400),
        ("create-topic", {"topic": OWN["ann"]}, 409),
        ("create-topic", {"topic": "ann-orders-x", "partitions": "x"}, 400),
        ("create-topic", {"topic": "ann-orders-x", "settings": "nothing"}, 400),
        ("topic-settings", {"topic": OWN["ann"]}, 400),
        ("topic-settings", {"topic": OWN["ann"], "set": "a=1", "unset": "a"}, 400),
        ("topic-settings", {"topic": OWN["ann"], "set": "no.such.setting=1"}, 400),
        ("topic-settings", {"topic": OWN["ann"], "set": "retention.ms=7 parsecs"}, 400),
        ("add-partitions", {"topic": OWN["ann"], "total": "1"}, 400),
        ("add-partitions", {"topic": "absent", "total": "1"}, 404),
        ("delete-records", {"topic": OWN["ann"]}, 400),
        ("delete-records", {"topic": OWN["ann"], "offset": "5", "partition": "9"}, 400),
        ("delete-records", {"topic": OWN["ann"], "offset": "0"}, 409),
        ("delete-records", {"topic": OWN["ann"], "what": "some"}, 400),
        ("produce", {"topic": OWN["ann"], "partition": "2"}, 400),
        ("produce", {"topic": OWN["ann"], "value_form": "base64", "value": "#"}, 400),
        ("produce", {"topic": OWN["ann"], "headers": "{"}, 400),
        ("produce", {"topic": OWN["ann"], "value": "x" * (1 << 20) + "y"}, 400),
        ("reset-offsets", {"group": "absent"}, 404),
        ("reset-offsets", {"group": GROUP, "target": "time"}, 400),
        ("reset-offsets", {"group": GROUP, "target": "time", "time": "yesterday"}, 400),
        ("reset-offsets", {"group": GROUP, "partition": "9"}, 400),
        ("abort-transaction", {"topic": OWN["ann"], "partition": "0"}, 409),
        ("abort-transaction", {"topic": OWN["ann"], "partition": "7"}, 400),
        ("nothing", {}, 404),
    ],
)
def test_wrong_forms_get_a_sentence(
    owned: Cluster, browsers: Browsers, action: str, form: dict[str, str], status: int
) -> None:
    answer = plan(browsers.log_in("ann"), action, form)
    assert answer.status_code == status, answer.text
    check_page(answer.text)


@pytest.mark.parametrize("data", [*(text.encode() for text in HOSTILE), b"\n\na\r\nb", b"\xff\0",
                                  b"", None, "\u20ac\n".encode()])  # fmt: skip
def test_copy_of_a_record_is_exact(owned: Cluster, browsers: Browsers, data: bytes | None) -> None:
    place = OWN["ann"], 1
    node = leaders(owned, [OWN["ann"]])[place]
    header = "h", data
    append(owned, node, {place: pack([Record(0, 0, data, data, [header])])})
    browser = browsers.log_in("ann")
    text = browser.get(f"/change/produce?topic={OWN['ann']}&partition=1&offset=0").text
    check_page(text)
    form = fields(text)
    assert (form["key_form"], form["partition"]) == (field_of(data)[0], "1")
    # As a browser sends it.
    sent = {name: value.replace("\n", "\r\n") for name, value in form.items()}
    answer = browser.post("/change/produce", data=sent)
    assert make(browser, "produce", {}, sealed(answer)).status_code == 200
    found = fetch(owned, node, place, 1)
    (copy,) = [each for each in records(found.records) if each.offset == 1]
    assert (copy.key, copy.value, copy.headers) == (data, data, [header])


def fields(text: str) -> dict[str, str]:
    """Return the fields of the form of a page, as a browser reads them."""
    form = text[text.index('<form class="fields"') :]
    found = dict(re.findall(r'<input [^>]*name="(\w+)" value="([^"]*)"', form))
    found |= dict(re.findall(r'<textarea name="(\w+)"[^>]*>\n?([^<]*)</textarea>', form))
    for name, choices in re.findall(r'<select name="(\w+)">(.*?)</select>', form, re.DOTALL):
        chosen = re.findall(r"<option selected>(.*?)<", choices)
        found[name] = (chosen or re.findall(r"<option>(.*?)<", choices))[0]
    return {name: html.unescape(value) for name, value in found.items()}


def test_setting_of_another_program_is_shown_before(owned: Cluster, browsers: Browsers) -> None:
    alter(owned, (TOPIC, OWN["ann"]), [("retention.ms", "777", SET)])
    browser = browsers.log_in("ann")
    assert "777" in browser.get(f"/change/topic-settings?topic={OWN['ann']}").text
    text = plan(browser, "topic-settings", FORMS["topic-settings"]).text
    assert "777 (from topic)" in text
    assert "5000" in text
    assert "(the default)" in text


def test_changes_without_a_log_in(owned: Cluster, secured: InProcessBroker) -> None:
    """One session for all; the token keeps other sites out."""
    options = ConsoleOptions(secured.bootstrap, ("127.0.0.1",), allow_changes=True)
    app = application(options)
    with TestClient(app, base_url=ORIGIN, headers={"origin": ORIGIN}) as browser:
        page = browser.get(f"/change/add-partitions?topic={OWN['ann']}").text
        form = fields(page)
        assert browser.post("/change/add-partitions", data={**form, "csrf": "", "total": "4"}
                            ).status_code == 403  # fmt: skip
        token = sealed(browser.post("/change/add-partitions", data={**form, "total": "4"}))
        sent = {"csrf": form["csrf"], "plan": token}
        assert browser.post("/apply", data=sent).status_code == 200
    assert len(leaders(owned, [OWN["ann"]])) == 4


@pytest.mark.real
def test_only_hanging_transactions_are_aborted(
    owned: Cluster, secured: InProcessBroker, browsers: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open transaction is one that hangs if its coordinator says nothing of it."""
    topic, form = OWN["ann"], {"topic": OWN["ann"], "partition": "0"}
    producer = Producer({"bootstrap.servers": secured.bootstrap, "transactional.id": "open"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    producer.flush(60)
    options = ConsoleOptions(secured.bootstrap, ("127.0.0.1",), allow_changes=True)
    with TestClient(application(options), base_url=ORIGIN, headers={"origin": ORIGIN}) as admin:
        answer = plan(admin, "abort-transaction", form)
        assert answer.status_code == 409
        assert "The coordinator has this transaction" in answer.text
        monkeypatch.setattr(
            group_actions, "find_hanging", lambda _, found: [(each, None) for each in found]
        )
        wrong = {**form, "start": "3"}
        assert plan(admin, "abort-transaction", wrong).status_code == 409
        answer = make(browsers.log_in("ann"), "abort-transaction", form)
        assert answer.status_code == 403  # the marker needs a right on the cluster
        places = {(topic, 0): -1}
        led_by = leaders(owned, [topic])
        assert list_offsets(owned, places, led_by, READ_COMMITTED)[topic, 0] == 10
        token = sealed(plan(admin, "abort-transaction", form))
        assert make(admin, "abort-transaction", form, token).status_code == 200
        assert list_offsets(owned, places, led_by, READ_COMMITTED)[topic, 0] == 12
        assert plan(admin, "abort-transaction", form).status_code == 409
