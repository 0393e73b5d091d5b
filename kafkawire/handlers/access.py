"""The rights that each API needs: the table that docs/access.md shows.

`ApiAccess.whole` is checked before the handler runs, and a refusal is the error of the whole
request (`failures`): the code of the resource at top level, or in every item. `ApiAccess.items` is
checked by the handler for each topic, group or other item; its text says what a refused one gets.
Without an authorizer nothing is checked. As in Kafka's KafkaApis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kafkawire.codec.errors import KafkaError
from kafkawire.handlers.context import UNAUTHORIZED
from kafkawire.messages.registry import DESCRIBE_SCHEDULES, GROUP_ACTIVITY, TIER
from kafkawire.security.acls.model import CLUSTER_NAME, Operation, ResourceKind

if TYPE_CHECKING:
    from kafkawire.handlers.context import RequestContext


class Need(NamedTuple):
    """An operation on a resource. `name`: the field of the request that names the resource."""

    operation: Operation
    resource: ResourceKind
    name: str = ""

    def __str__(self) -> str:
        resource = self.resource.name.lower().replace("_", " ")
        return f"{self.operation.name} {resource}"


class ApiAccess(NamedTuple):
    """The needs of one API. `whole`: of the request, all of them, or one of them if `any_of`;
    `items`: of its items, with what a refused item gets; `until`: the newest version for which
    `whole` holds; `hot`: the handler itself checks `whole`."""

    whole: tuple[Need, ...] = ()
    items: tuple[tuple[str, str], ...] = ()
    any_of: bool = False
    until: int = 1 << 15
    hot: bool = False


_O, _R = Operation, ResourceKind


def _cluster(operation: Operation) -> tuple[Need, ...]:
    return (Need(operation, _R.CLUSTER),)


def _group(operation: Operation) -> tuple[Need, ...]:
    return (Need(operation, _R.GROUP, "group_id"),)


_TRANSACTION = Need(_O.WRITE, _R.TRANSACTIONAL_ID, "transactional_id")
_DESCRIBE_TOPIC = "DESCRIBE topic"

ACCESS: dict[int, ApiAccess] = {
    0: ApiAccess(
        items=(
            ("WRITE transactional id, if a batch is transactional", "53 in every partition"),
            ("WRITE topic", "29; with acks=0 the connection is closed"),
        )
    ),
    1: ApiAccess(items=(("READ topic", "29; at once only if no partition may be read"),)),
    2: ApiAccess(items=((_DESCRIBE_TOPIC, "29, after the others"),)),
    3: ApiAccess(
        items=(
            (_DESCRIBE_TOPIC, "29; hidden when all topics are asked for"),
            ("CREATE cluster or topic, to create it", "29"),
        )
    ),
    8: ApiAccess(_group(_O.READ), items=(("READ topic", "29"),)),
    9: ApiAccess(
        items=(
            ("DESCRIBE group", "30"),
            (_DESCRIBE_TOPIC, "29; hidden when all topics are asked for"),
        )
    ),
    10: ApiAccess(
        items=(
            ("DESCRIBE group", "30"),
            ("DESCRIBE transactional id", "53"),
            ("CLUSTER_ACTION cluster, for share partitions", "31"),
        ),
    ),
    11: ApiAccess(items=(("READ group", "30 for the whole request"),)),
    12: ApiAccess(_group(_O.READ), hot=True),
    13: ApiAccess(_group(_O.READ)),
    14: ApiAccess(_group(_O.READ)),
    15: ApiAccess(items=(("DESCRIBE group", "30, before the others"),)),
    16: ApiAccess(items=(("DESCRIBE cluster, or DESCRIBE group", "hidden"),)),
    18: ApiAccess(),
    19: ApiAccess(
        items=(
            ("CREATE cluster, or CREATE topic", "29"),
            ("DESCRIBE_CONFIGS topic, to see settings", "no settings, TopicConfigErrorCode 29"),
        )
    ),
    20: ApiAccess(
        items=(("DELETE cluster, or DELETE topic", "29; without DESCRIBE topic also if absent"),)
    ),
    21: ApiAccess(items=(("DELETE topic", "29"),)),
    22: ApiAccess(
        items=(
            ("WRITE transactional id, if there is one", "53"),
            ("IDEMPOTENT_WRITE cluster, or WRITE on any topic, if not", "31"),
        )
    ),
    23: ApiAccess(items=(("CLUSTER_ACTION cluster, or DESCRIBE topic", "29"),)),
    24: ApiAccess(
        (_TRANSACTION._replace(name="v3_and_below_transactional_id"),),
        items=(
            ("WRITE topic (v0-3)", "29, and 55 for all others"),
            ("CLUSTER_ACTION cluster (v4 and newer)", "31 for the whole request"),
        ),
        until=3,
    ),
    25: ApiAccess((_TRANSACTION, *_group(_O.READ))),
    26: ApiAccess((_TRANSACTION,), hot=True),
    27: ApiAccess((*_cluster(_O.ALTER), *_cluster(_O.CLUSTER_ACTION)), any_of=True),
    28: ApiAccess((_TRANSACTION, *_group(_O.READ)), items=(("READ topic", "29"),)),
    29: ApiAccess(_cluster(_O.DESCRIBE)),
    30: ApiAccess(items=(("ALTER cluster", "31 for every rule"),)),
    31: ApiAccess(items=(("ALTER cluster", "31 for every filter"),)),
    32: ApiAccess(
        items=(
            ("DESCRIBE_CONFIGS topic, group, or cluster (others)", "29, 30, 31, after the others"),
        )
    ),
    33: ApiAccess(items=(("ALTER_CONFIGS topic, group, or cluster (others)", "29, 30, 31"),)),
    34: ApiAccess(items=(("ALTER cluster", "31 for every partition"),)),
    35: ApiAccess(items=(("DESCRIBE cluster", "no results, 31 from v3 on"),)),
    37: ApiAccess(items=(("ALTER topic", "29"),)),
    38: ApiAccess(items=(("CREATE_TOKENS user, for another owner", "65 for the whole request"),)),
    39: ApiAccess(),
    40: ApiAccess(),
    41: ApiAccess(
        items=(
            ("DESCRIBE delegation token, or DESCRIBE_TOKENS user, for tokens of others", "hidden"),
        )
    ),
    42: ApiAccess(items=(("DELETE group", "30, after the others"),)),
    43: ApiAccess(items=(("ALTER cluster", "31, also in each partition"),)),
    44: ApiAccess(items=(("ALTER_CONFIGS topic, group, or cluster (others)", "29, 30, 31"),)),
    45: ApiAccess(_cluster(_O.ALTER)),
    46: ApiAccess(_cluster(_O.DESCRIBE)),
    47: ApiAccess(_group(_O.DELETE), items=(("READ topic", "29"),)),
    48: ApiAccess(items=(("DESCRIBE_CONFIGS cluster", "31, no entries"),)),
    49: ApiAccess(items=(("ALTER_CONFIGS cluster", "31 for every entry"),)),
    50: ApiAccess(items=(("DESCRIBE cluster", "31 for every user, whose name is left out"),)),
    51: ApiAccess(items=(("ALTER cluster", "31 for every user"),)),
    55: ApiAccess(_cluster(_O.DESCRIBE)),
    57: ApiAccess(_cluster(_O.ALTER)),
    60: ApiAccess(),
    61: ApiAccess(items=(("READ topic", "29"),)),
    64: ApiAccess(_cluster(_O.ALTER)),
    65: ApiAccess(
        items=(("DESCRIBE transactional id", "53"), (_DESCRIBE_TOPIC, "hidden")),
    ),
    66: ApiAccess(items=(("DESCRIBE transactional id", "hidden"),)),
    68: ApiAccess(
        items=(
            ("READ group", "30 for the whole request"),
            ("DESCRIBE topic, of subscribed names", "29 for the whole request"),
            ("DESCRIBE topic, of those that match a pattern", "hidden"),
        )
    ),
    69: ApiAccess(
        items=(
            ("DESCRIBE group", "30, before the others"),
            ("DESCRIBE topic, of all assignments", "29 for the group"),
        )
    ),
    71: ApiAccess(),
    72: ApiAccess(),
    74: ApiAccess(_cluster(_O.DESCRIBE_CONFIGS)),
    75: ApiAccess(items=((_DESCRIBE_TOPIC, "29, last; hidden when all topics are asked for"),)),
    78: ApiAccess(
        items=(("READ group", "30 for the whole request"), ("READ topic", "29, after the others"))
    ),
    79: ApiAccess(items=(("READ group", "30 for the whole request"), ("READ topic", "29"))),
    **dict.fromkeys((83, 84, 85, 86, 87), ApiAccess(_cluster(_O.CLUSTER_ACTION))),
    88: ApiAccess(
        items=(
            ("READ group", "30 for the whole request"),
            ("DESCRIBE topic, of the topology", "29 for the whole request"),
            ("CREATE cluster or topic, of internal topics", "status 3, not created"),
        )
    ),
    89: ApiAccess(
        items=(
            ("DESCRIBE group", "30, before the others"),
            ("DESCRIBE topic, of the topology", "29 for the group"),
        )
    ),
    76: ApiAccess(
        items=(
            ("READ group", "30 for the whole request"),
            ("DESCRIBE topic, of subscribed names", "29 for the whole request"),
        )
    ),
    77: ApiAccess(
        items=(
            ("DESCRIBE group", "30, before the others"),
            ("DESCRIBE topic, of all assignments", "29 for the group"),
        )
    ),
    90: ApiAccess(
        items=(
            ("DESCRIBE group", "30"),
            (_DESCRIBE_TOPIC, "29; hidden when all topics are asked for"),
        )
    ),
    91: ApiAccess(
        items=(("READ group", "30 for the whole request"), ("READ topic", "29")),
    ),
    92: ApiAccess(
        items=(("DELETE group", "30 for the whole request"), ("READ topic", "29")),
    ),
    GROUP_ACTIVITY: ApiAccess(_group(_O.DESCRIBE)),
    TIER: ApiAccess(
        items=(
            ("ALTER cluster, for all but the map of offsets", "31 for the whole request"),
            ("DESCRIBE topic, for its map of offsets", "as if it did not exist"),
        )
    ),
    DESCRIBE_SCHEDULES: ApiAccess(
        items=((_DESCRIBE_TOPIC, "29; hidden when all topics are asked for"),)
    ),
}
"""By API key. Codes: 29 TOPIC_, 30 GROUP_, 31 CLUSTER_, 53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
55 OPERATION_NOT_ATTEMPTED; 65 DELEGATION_TOKEN_AUTHORIZATION_FAILED."""
BEFORE_LOGIN = frozenset((17, 18, 36))
"""APIs that need no rights: a client that has not logged in uses them."""


def check(ctx: RequestContext, key: int, request: Any) -> None:
    """Check what a whole request needs, where there is an authorizer. Raises KafkaError. An API
    without a row is refused, so that a new one is not forgotten."""
    if key in BEFORE_LOGIN:
        return
    access = ACCESS[key]
    if access.hot or ctx.version > access.until:
        return
    needs = access.whole
    for at, need in enumerate(needs):
        name = getattr(request, need.name) if need.name else CLUSTER_NAME
        logged = not access.any_of or at == len(needs) - 1
        if ctx.may(need.operation, need.resource, name or "", logged=logged):
            if access.any_of:
                return
        elif logged:
            raise KafkaError(UNAUTHORIZED[need.resource])
