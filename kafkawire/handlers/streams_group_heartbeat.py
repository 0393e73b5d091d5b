"""StreamsGroupHeartbeat v0-1: a member of a streams group joins, reports its tasks, or leaves
(KIP-1071).

v1 has the acceptable recovery lag as int64. The feature, the names of topics and the rights are
checked here, in Kafka's order (KafkaApis), and everything else by the group:
kafkawire.groups.streams.heartbeat. Internal topics that the group lacks are created after the
answer.

Not done: warm-up tasks, client tags (status 6), the description of the topology (KIP-1331).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kafkawire.broker.new_topics import INTERNAL_TOPICS, name_fault
from kafkawire.codec.compile import sliced_encoder
from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.groups.model.records import StreamsKind, compile_group_records
from kafkawire.groups.model.request import STREAMS_HEARTBEAT, StreamsHeartbeatResult
from kafkawire.groups.model.streams_topics import Status
from kafkawire.handlers.clients import client_of
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.create_topics import CreatableTopic
from kafkawire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Topology,
)
from kafkawire.security.acls.model import Operation, ResourceKind

MAX_ERRORS_SHOWN = 3
"""Topics whose error a status names (as in Kafka)."""
NEVER_STRICT = 1 << 15
"""Creating topics beyond the quota delays the client; the error would be of no use to it."""


def compile_answer(version: int) -> None:
    """Compile the encoder of answers, and the codecs of the records of groups; in any thread."""
    sliced_encoder(StreamsGroupHeartbeatResponse, version)
    compile_group_records(StreamsKind)


async def streams_group_heartbeat(
    ctx: RequestContext, req: StreamsGroupHeartbeatRequest
) -> StreamsGroupHeartbeatResponse:
    """Answer after the commit of what the heartbeat changes; at once if it changes nothing."""
    try:
        await _check(ctx, req)
    except KafkaError as error:
        return StreamsGroupHeartbeatResponse(
            error_code=int(error.code), error_message=error.message
        )
    service = ctx.broker.groups
    answer = service.handle_request(STREAMS_HEARTBEAT, client_of(ctx), ctx.version, req)
    if not answer.done():
        ctx.park()
    result = await answer
    if result.missing:
        _create_missing(ctx, req.group_id, result)
    return result.response


async def _check(ctx: RequestContext, req: StreamsGroupHeartbeatRequest) -> None:
    if not ctx.broker.config.streams_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not ctx.may(Operation.READ, ResourceKind.GROUP, req.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if req.topology is None:
        return
    names = await _list_topics(ctx, req.topology)
    if internal := [name for name in names if name in INTERNAL_TOPICS]:
        text = f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is "
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"{text}prohibited.")
    if invalid := [name for name in names if name_fault(name)]:
        text = f"Topic names {','.join(invalid)} are not valid topic names."
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    if ctx.rights is not None:
        for name in names:
            if not ctx.may_topic(Operation.DESCRIBE, name):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            await ctx.give_way()


async def _list_topics(ctx: RequestContext, topology: Topology) -> dict[str, None]:
    """Return the topics of a topology, each once."""
    names: dict[str, None] = {}
    for each in topology.subtopologies:
        names.update(dict.fromkeys((*each.source_topics, *each.repartition_sink_topics)))
        for infos in (each.repartition_source_topics, each.state_changelog_topics):
            names.update(dict.fromkeys(info.name for info in infos))
        await ctx.give_way()
    return names


def _create_missing(ctx: RequestContext, group_id: str, result: StreamsHeartbeatResult) -> None:
    """Have the internal topics of a group created if the client may do that, and show why they were
    not."""
    missing, topics = result.missing, ctx.broker.streams_topics
    if not ctx.may_cluster(Operation.CREATE, logged=False):
        denied = [each.name for each in missing if not ctx.may_topic(Operation.CREATE, each.name)]
        if denied:
            _extend_status(
                result.response, f"; Unauthorized to CREATE on topics {', '.join(denied)}."
            )
            return
    sender, charge = ctx.sender, ctx.charge(NEVER_STRICT)

    async def create(due: Sequence[CreatableTopic]) -> Sequence[object]:
        return await ctx.broker.topics.create(due, sender=sender, charge=charge)

    # As long as two heartbeats: each member shows the error once.
    pause_ms = 2 * result.response.heartbeat_interval_ms
    topics.start_creation(group_id, missing, create, pause_ms)
    errors = topics.errors_of(missing)
    if errors:
        shown = ", ".join(f"{n} ({text})" for n, text in islice(errors.items(), MAX_ERRORS_SHOWN))
        more = len(errors) - MAX_ERRORS_SHOWN
        rest = f" and {more} more" if more > 0 else ""
        _extend_status(result.response, f"; Creation failed: {shown}{rest}.")


def _extend_status(response: StreamsGroupHeartbeatResponse, text: str) -> None:
    for status in response.status or ():
        if status.status_code == Status.MISSING_INTERNAL_TOPICS:
            status.status_detail += text
