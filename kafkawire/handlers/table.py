"""The one table of APIs this broker serves; ApiVersions and the README are computed from it.

A row names its handler by module, so that starting a broker imports neither handlers nor message
modules: the first request for an API does. Cold handlers are `async def name(ctx, request)` in
`kafkawire.handlers.<name>`; hot ones (Produce, Fetch, Heartbeat, EndTxn) are classes that read the
receive buffer themselves. A cold one may have a second function that answers without a task what
need not wait (`answer_now`). To add an API, add a row and a module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kafkawire.codec.compile import decoder, sliced_decoder, sliced_encoder
from kafkawire.codec.types import Buffer
from kafkawire.messages.registry import (
    DESCRIBE_SCHEDULES,
    GROUP_ACTIVITY,
    TIER,
    request_class,
    response_class,
    spec_of,
)

if TYPE_CHECKING:
    from kafkawire.broker.broker import Broker
    from kafkawire.handlers.context import RequestContext
    from kafkawire.handlers.exchange import HotHandler, Peer, Pinned

Handler = Callable[["RequestContext", Any], Awaitable[Any]]
AnswerNow = Callable[["Broker", "Peer", int, Any], "bytes | None"]
"""Returns the encoded answer to a request of a version; None, without any effect, if the handler
must serve it. Not called for clients with quotas."""
RequestDecoder = Callable[[Buffer, int, int], tuple[Any, int]]
"""A decoder of requests, see kafkawire.codec.compile."""

NEVER = 1 << 15
"""The flexible version of an API that has none."""


@dataclass(frozen=True, slots=True)
class ApiRow:
    """An API as served: its name in the code and its properties. Its versions are those in the
    registry of messages, up to `newest` if set."""

    key: int
    module: str
    hot_class: str | None = None
    newest: int | None = None
    advertised_min: int | None = None
    """The oldest version in ApiVersions, if it must differ from `min_version` (KAFKA-18659)."""
    compile_answer: str | None = None
    """The function of the handler's module that compiles the encoders of a version; of a handler
    that encodes its answers itself, or needs more codecs than those of its messages."""
    answer_now: str | None = None
    """The function of the handler's module that is called before the handler: an AnswerNow."""

    @property
    def min_version(self) -> int:
        """The oldest version served."""
        return spec_of(self.key).min_version

    @property
    def max_version(self) -> int:
        """The newest version served."""
        return spec_of(self.key).max_version if self.newest is None else self.newest


ROWS: tuple[ApiRow, ...] = (
    ApiRow(0, "produce", "Produce", advertised_min=0),
    ApiRow(1, "fetch", "Fetch"),
    ApiRow(2, "list_offsets"),
    ApiRow(3, "metadata", compile_answer="compile_answer"),
    ApiRow(8, "offset_commit"),
    ApiRow(9, "offset_fetch"),
    ApiRow(10, "find_coordinator"),
    ApiRow(11, "join_group"),
    ApiRow(12, "heartbeat", "Heartbeat"),
    ApiRow(13, "leave_group"),
    ApiRow(14, "sync_group"),
    ApiRow(15, "describe_groups"),
    ApiRow(16, "list_groups"),
    ApiRow(17, "sasl_handshake"),
    ApiRow(18, "api_versions"),
    ApiRow(19, "create_topics"),
    ApiRow(20, "delete_topics"),
    ApiRow(21, "delete_records"),
    ApiRow(22, "init_producer_id", newest=5),
    ApiRow(23, "offset_for_leader_epoch"),
    ApiRow(24, "add_partitions_to_txn"),
    ApiRow(25, "add_offsets_to_txn"),
    ApiRow(26, "end_txn", "EndTxn"),
    ApiRow(27, "write_txn_markers"),
    ApiRow(28, "txn_offset_commit"),
    ApiRow(29, "describe_acls"),
    ApiRow(30, "create_acls"),
    ApiRow(31, "delete_acls"),
    ApiRow(32, "describe_configs"),
    ApiRow(33, "alter_configs"),
    ApiRow(34, "alter_replica_log_dirs"),
    ApiRow(35, "describe_log_dirs"),
    ApiRow(36, "sasl_authenticate"),
    ApiRow(37, "create_partitions"),
    ApiRow(38, "create_delegation_token"),
    ApiRow(39, "renew_delegation_token"),
    ApiRow(40, "expire_delegation_token"),
    ApiRow(41, "describe_delegation_token"),
    ApiRow(42, "delete_groups"),
    ApiRow(43, "elect_leaders"),
    ApiRow(44, "incremental_alter_configs"),
    ApiRow(45, "alter_partition_reassignments"),
    ApiRow(46, "list_partition_reassignments"),
    ApiRow(47, "offset_delete"),
    ApiRow(48, "describe_client_quotas"),
    ApiRow(49, "alter_client_quotas"),
    ApiRow(50, "describe_user_scram_credentials"),
    ApiRow(51, "alter_user_scram_credentials"),
    ApiRow(55, "describe_quorum"),
    ApiRow(57, "update_features"),
    ApiRow(60, "describe_cluster"),
    ApiRow(61, "describe_producers"),
    ApiRow(64, "unregister_broker"),
    ApiRow(65, "describe_transactions"),
    ApiRow(66, "list_transactions"),
    ApiRow(68, "consumer_group_heartbeat", answer_now="answer_unchanged"),
    ApiRow(69, "consumer_group_describe"),
    ApiRow(71, "get_telemetry_subscriptions"),
    ApiRow(72, "push_telemetry"),
    ApiRow(74, "list_config_resources"),
    ApiRow(75, "describe_topic_partitions"),
    ApiRow(76, "share_group_heartbeat"),
    ApiRow(77, "share_group_describe"),
    ApiRow(78, "share_fetch"),
    ApiRow(79, "share_acknowledge"),
    *(ApiRow(key, "share_group_states") for key in (83, 84, 85, 86, 87)),
    ApiRow(88, "streams_group_heartbeat", compile_answer="compile_answer"),
    ApiRow(89, "streams_group_describe"),
    ApiRow(90, "describe_share_group_offsets"),
    ApiRow(91, "alter_share_group_offsets"),
    ApiRow(92, "delete_share_group_offsets"),
)
PACKAGES = ("produce", "fetch")
"""Handlers that are packages, whose module `handler` is imported."""
OWN_ROWS: tuple[ApiRow, ...] = (
    ApiRow(TIER, "tier"),
    ApiRow(GROUP_ACTIVITY, "group_activity"),
    ApiRow(DESCRIBE_SCHEDULES, "describe_schedules"),
)
"""Served but not listed by ApiVersions, because Kafka's clients do not use these APIs."""


class Api:
    """A row prepared for one broker; the connection reads its attributes for each request."""

    __slots__ = (
        "_answer_now", "_compile_answer", "advertised_min", "answer_now", "decoders",
        "flexible_answer", "flexible_from", "handler", "hot", "key", "max_version",
        "may_follow_produce", "min_version", "module", "name",
    )  # fmt: skip

    def __init__(self, row: ApiRow) -> None:
        declared = spec_of(row.key)
        self.key = row.key
        self.name = declared.name
        self.module = row.module
        self.min_version = row.min_version
        self.max_version = row.max_version
        self.advertised_min = row.min_version if row.advertised_min is None else row.advertised_min
        self.flexible_from = NEVER if declared.flexible_from is None else declared.flexible_from
        # KIP-511: a client that does not know the broker's versions must be able to parse the
        # response.
        self.flexible_answer = row.module != "api_versions"
        self.may_follow_produce = row.module == "produce"
        self.hot: HotHandler | None = None  # an Unmade before its first request
        self.handler: Handler | None = None
        self.answer_now: AnswerNow | None = None
        self._answer_now = row.answer_now
        self._compile_answer = row.compile_answer
        self.decoders: dict[int, RequestDecoder] = {}  # by version, once its messages are compiled

    def compile(self, version: int) -> None:
        """Import the cold handler and compile the messages of a version; in any thread."""
        module = self.import_handler_module()
        self.handler = getattr(module, self.module)
        if self._answer_now is not None:
            self.answer_now = getattr(module, self._answer_now)
        request = request_class(self.key)
        sliced_decoder(request, version)
        if self._compile_answer is not None:
            getattr(module, self._compile_answer)(version)
        else:
            sliced_encoder(response_class(self.key), version)
        self.decoders[version] = decoder(request, version)

    def import_handler_module(self) -> ModuleType:
        """Import the handler's module; in any thread."""
        path = f"{self.module}.handler" if self.module in PACKAGES else self.module
        return import_module(f"kafkawire.handlers.{path}")


class Unmade:
    """Placeholder of a hot handler, which is created by the first request for its API."""

    __slots__ = ("_api", "_broker", "_hot_class")

    def __init__(self, api: Api, hot_class: str, broker: Broker) -> None:
        self._api = api
        self._hot_class = hot_class
        self._broker = broker

    def start(
        self,
        peer: Peer,
        version: int,
        correlation_id: int,
        block: Pinned,
        buf: memoryview,
        pos: int,
        end: int,
    ) -> bool:
        """Start a hot request with the created handler; see HotHandler."""
        made: HotHandler = getattr(self.load(), self._hot_class)(self._broker)
        self._api.hot = made
        return made.start(peer, version, correlation_id, block, buf, pos, end)

    def load(self) -> ModuleType:
        """Import the handler's module; in any thread."""
        return self._api.import_handler_module()

    def close(self) -> None:
        """Do nothing: there were no requests."""


def serve_all(broker: Broker) -> dict[int, Api]:
    """Return the table for `broker`, by API key."""
    apis = {row.key: Api(row) for row in (*ROWS, *OWN_ROWS)}
    for row in ROWS:
        if row.hot_class is not None:
            apis[row.key].hot = Unmade(apis[row.key], row.hot_class, broker)
    return apis


def load_hot(apis: Mapping[int, Api]) -> None:
    """Import the modules of hot handlers that are not loaded yet; in any thread."""
    for api in apis.values():
        if isinstance(api.hot, Unmade):
            api.hot.load()
