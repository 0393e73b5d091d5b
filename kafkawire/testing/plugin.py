"""pytest plugin: fixtures for brokers. docs/testing.md is the guide.

    def test_produce(kafkawire_broker):
        producer = KafkaProducer(bootstrap_servers=kafkawire_broker.bootstrap)

Loaded in every pytest run where kafkawire is installed, so nothing heavy is imported here:
kafkawire.testing.process is imported when a test uses a fixture. That module documents the broker
object: `bootstrap`, `port`, `data`, `output`, `stop()`, `kill()`, `restart()`.

- `kafkawire_broker`: an empty broker for one test, which may kill it; or for a module, a session...
  by `kafkawire_scope` in pytest's configuration.
- `kafkawire_session_broker`: one broker for the whole session; tests share its topics, so use
  different names, and leave it running.
- `kafkawire_broker_factory`: starts brokers with settings: `factory(settings={"flush": "os"})`, or
  with several brokers: `factory(brokers=3)`.
- `kafkawire_topic`: the name of a topic of this test's own; `kafkawire_topics(partitions=3)` makes
  more. `kafkawire_producer` and `kafkawire_consumer` send and read records.
- `kafkawire_settings`: override it to give all of these other settings.

The data folder of a broker is deleted after its test, or at the end of the session. It is kept if
the test has failed, whose report then has the path and the last lines of the broker's output.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

if TYPE_CHECKING:
    from kafkawire.testing.process import BrokerProcess
    from kafkawire.testing.topics import TopicConsumer, TopicProducer

Factory = Callable[..., "BrokerProcess"]
TopicFactory = Callable[..., str]
Node = pytest.Item | pytest.Collector
Scope = Literal["session", "package", "module", "class", "function"]

SCOPES: tuple[Scope, ...] = ("function", "class", "module", "package", "session")
REPORTED_LINES = 40
"""Lines of a broker's output in the report of a failed test: about a screen."""


@dataclass(slots=True)
class Started:
    """A broker with a folder that this plugin deletes. `node`: the test, module or session after
    which it does. `owner`: the test that started it, or the fixture and its scope."""

    broker: BrokerProcess
    node: Node
    owner: BrokerOwner
    failed: bool = False

    def belongs_to(self, item: pytest.Item) -> bool:
        """Return whether a test has used it."""
        return self.owner.node in item.listchain() and (
            self.owner.fixture is None or self.owner.fixture in _fixtures(item)
        )


class Spare(NamedTuple):
    """A broker that is being started for the next test. `settings`: those it was made with."""

    broker: BrokerProcess
    settings: Mapping[str, object]

    def discard(self) -> None:
        """End it and delete its folder."""
        self.broker.kill()
        shutil.rmtree(self.broker.data, ignore_errors=True)


class BrokerOwner(NamedTuple):
    """The starter of a broker. `fixture` None: the code of a test."""

    node: Node
    fixture: str | None


STARTED = pytest.StashKey[list[Started]]()
SPARE = pytest.StashKey["Spare | None"]()
NEXT = pytest.StashKey["pytest.Item | None"]()
"""The test after the current one."""
OWNERS = pytest.StashKey[list[BrokerOwner]]()
"""The current test, and the fixtures that are being set up for it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of pytest's configuration file."""
    parser.addini(
        "kafkawire_scope",
        "Scope of kafkawire_broker: function (default), class, module, package or session",
        default="function",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, prepare the list of brokers."""
    scope = config.getini("kafkawire_scope")
    if scope not in SCOPES:
        allowed = ", ".join(SCOPES)
        raise pytest.UsageError(f"kafkawire_scope={scope}: it must be one of {allowed}")
    config.stash[STARTED] = []
    config.stash[OWNERS] = []
    config.stash[SPARE] = config.stash[NEXT] = None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start to import the broker, in another process, if any test uses one."""
    if not session.config.option.collectonly and any(_uses_broker(each) for each in session.items):
        from kafkawire.testing.forks import find_or_start_server

        find_or_start_server()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add a section to the report of a failed test, and delete the folders of a passed one."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    started = item.config.stash[STARTED]
    if report.failed and _uses_broker(item):
        for each in started:
            if each.belongs_to(item):
                each.failed = True
                report.sections.append(("kafkawire broker", _describe_broker(each.broker)))
    if report.when == "teardown":
        _delete(started, item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Brokers that are started belong to this test."""
    item.config.stash[NEXT] = nextitem
    item.config.stash[OWNERS].append(BrokerOwner(item, None))
    yield
    item.config.stash[OWNERS].pop()


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Brokers that are started belong to this fixture, and so to all tests that use it."""
    request.config.stash[OWNERS].append(BrokerOwner(request.node, fixturedef.argname))
    yield
    request.config.stash[OWNERS].pop()


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Delete the folders of shared brokers after their end, and end the fork server."""
    spare = session.config.stash[SPARE]
    if spare is not None:
        spare.discard()
    yield
    started = session.config.stash[STARTED]
    for node in {each.node for each in started}:
        _delete(started, node)
    if started or any(_uses_broker(each) for each in session.items):
        from kafkawire.testing.forks import close_shared

        close_shared()


def _uses_broker(item: pytest.Item) -> bool:
    return any(name.startswith("kafkawire_") for name in _fixtures(item))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _describe_broker(broker: BrokerProcess) -> str:
    lines = broker.output.splitlines()[-REPORTED_LINES:]
    return "\n".join([f"data folder, kept: {broker.data}", "last lines of its output:", *lines])


def _delete(started: list[Started], node: Node) -> None:
    """Delete the folders of brokers of `node` unless a test has failed with them."""
    for each in [each for each in started if each.node is node]:
        if not each.failed and not each.broker.running:
            shutil.rmtree(each.broker.data, ignore_errors=True)
        started.remove(each)


@pytest.fixture(scope="session")
def kafkawire_settings() -> Mapping[str, object]:
    """Settings of every broker, in addition to kafkawire.testing.TEST_SETTINGS. Override this
    fixture to choose them."""
    return {}


def _factory(
    node: Node,
    folders: pytest.TempPathFactory,
    common: Mapping[str, object],
) -> Iterator[Factory]:
    from kafkawire.testing.control import TEST_SETTINGS
    from kafkawire.testing.process import BrokerProcess

    ended: list[Callable[[], None]] = []

    def start(spare: Spare | None = None, **options: Any) -> BrokerProcess:
        temporary = options.get("data") is None
        settings = {**TEST_SETTINGS, **common, **(options.get("settings") or {})}
        if spare is not None and spare.settings == settings:
            broker = spare.broker
        else:
            if temporary:
                options["data"] = folders.mktemp("kafkawire")
            broker = BrokerProcess(**{**options, "settings": settings})
        # A folder that is deleted needs no clean end, which takes as long as a start.
        ended.append(broker.kill if temporary and broker.workers == 1 else broker.stop)
        if temporary:
            owner = node.config.stash[OWNERS][-1]
            node.config.stash[STARTED].append(Started(broker, node, owner))
        broker.start()
        return broker

    yield start
    for end in ended:
        end()


@pytest.fixture(scope="session")
def kafkawire_broker_factory(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kafkawire_settings: Mapping[str, object],
) -> Iterator[Factory]:
    """Factory that starts a broker with the keyword arguments of BrokerProcess (`settings`,
    `listeners`, `brokers`, `clock`, `users`, `snapshot`...). Brokers end with the session."""
    yield from _factory(request.node, tmp_path_factory, kafkawire_settings)


@pytest.fixture(scope="session")
def kafkawire_session_broker(kafkawire_broker_factory: Factory) -> BrokerProcess:
    """A broker shared by the tests of this session, stopped at its end."""
    return kafkawire_broker_factory()


def _scope(fixture_name: str, config: pytest.Config) -> Scope:
    scope: Scope = config.getini("kafkawire_scope")
    return scope


@pytest.fixture(scope=_scope)
def kafkawire_broker(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kafkawire_settings: Mapping[str, object],
) -> Iterator[BrokerProcess]:
    """A broker on a free port for one test, or for more by `kafkawire_scope`; stopped after it."""
    config = request.config
    for start in _factory(request.node, tmp_path_factory, kafkawire_settings):
        spare, config.stash[SPARE] = config.stash[SPARE], None
        broker = start(spare)
        if spare is not None and spare.broker is not broker:
            spare.discard()
        following = config.stash[NEXT]
        if request.scope == "function" and following and "kafkawire_broker" in _fixtures(following):
            config.stash[SPARE] = _begin_spare(tmp_path_factory, kafkawire_settings)
        yield broker


def _begin_spare(folders: pytest.TempPathFactory, common: Mapping[str, object]) -> Spare | None:
    """Begin to start a broker for the next test, which then need not wait for it."""
    from kafkawire.testing.control import TEST_SETTINGS, BrokerFailed
    from kafkawire.testing.process import BrokerProcess

    settings = {**TEST_SETTINGS, **common}
    broker = BrokerProcess(folders.mktemp("kafkawire"), settings=settings)
    try:
        broker.begin_start()
    except BrokerFailed:  # the next test starts its own, and reports why it cannot
        return None
    return Spare(broker, settings)


@pytest.fixture
def kafkawire_bootstrap(request: pytest.FixtureRequest) -> str:
    """Address of this test's broker: the session's if it uses that one, else kafkawire_broker."""
    shared = "kafkawire_session_broker" in request.fixturenames
    name = "kafkawire_session_broker" if shared else "kafkawire_broker"
    broker: BrokerProcess = request.getfixturevalue(name)
    return broker.bootstrap


@pytest.fixture
def kafkawire_topics(request: pytest.FixtureRequest, kafkawire_bootstrap: str) -> TopicFactory:
    """Function that creates a topic and returns its name, which no other topic has: `partitions`
    (1), `settings` of the topic."""
    from kafkawire.testing.topics import create_topic, unique_name

    def create(partitions: int = 1, settings: Mapping[str, object] | None = None) -> str:
        name = unique_name(request.node.name)
        create_topic(kafkawire_bootstrap, name, partitions, settings)
        return name

    return create


@pytest.fixture
def kafkawire_topic(kafkawire_topics: TopicFactory) -> str:
    """The name of an empty topic with one partition, which only this test has."""
    return kafkawire_topics()


@pytest.fixture
def kafkawire_producer(kafkawire_bootstrap: str) -> TopicProducer:
    """Sends records with kafkawire's own client; see kafkawire.testing.TopicProducer."""
    from kafkawire.testing.topics import TopicProducer

    return TopicProducer(kafkawire_bootstrap)


@pytest.fixture
def kafkawire_consumer(kafkawire_bootstrap: str) -> TopicConsumer:
    """Reads records with kafkawire's own client; see kafkawire.testing.TopicConsumer."""
    from kafkawire.testing.topics import TopicConsumer

    return TopicConsumer(kafkawire_bootstrap)
