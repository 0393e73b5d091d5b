"""ShareFetch v1-2: a member of a share group settles records, and acquires others.

v2 limits the number of records strictly if it is asked to (KIP-1206), and renews locks (KIP-1222).
Records are read and sent as those of a Fetch (kafkawire.handlers.share_reads). The checks are in
Kafka's order (KafkaApis, SharePartitionManager.newContext): those of ShareAcknowledge, then the
limits of a renewal, then the session.

A response has the partitions with records, an error, or acknowledgements.
"""

from __future__ import annotations

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import ClientGone, RequestContext
from kafkawire.handlers.share_acknowledge import (
    Acknowledging,
    AckOutcome,
    Asked,
    Hints,
    check_request,
)
from kafkawire.handlers.share_reads import ShareRead
from kafkawire.messages.share_fetch import (
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from kafkawire.share.sessions import FINAL, NEW_SESSION, Place, ShareSession


async def share_fetch(ctx: RequestContext, req: ShareFetchRequest) -> ShareFetchResponse:
    """Answer when there are records, or the client's time is over, and what it acknowledged is
    stored."""
    group_id, member = check_request(ctx, req)
    _check_renewal(req)
    await ctx.broker.load_shares()
    added: list[Place] = []
    asked: Asked = {}
    for topic in req.topics:
        for partition in topic.partitions:
            place = topic.topic_id, partition.partition_index
            added.append(place)
            if partition.acknowledgement_batches:
                asked[place] = partition.acknowledgement_batches
            await ctx.give_way()
    forgotten = [
        (topic.topic_id, index) for topic in req.forgotten_topics_data for index in topic.partitions
    ]
    session = await _find_session(ctx, req, added, forgotten, settles=bool(asked))
    acknowledging = Acknowledging(ctx, group_id, member, is_renew=req.is_renew_ack)
    await acknowledging.acknowledge_records(asked)
    rows: dict[Place, PartitionData] = {}
    # While records are waited for the locks that are renewed could end.
    if session is not None and not req.is_renew_ack:
        reading = ShareRead(ctx, req, session.rotate(req.share_session_epoch))
        rows = await reading.run()
    outcomes = await acknowledging.finish()
    if req.share_session_epoch == FINAL:
        ctx.broker.shares.release_member(group_id, member)
    return await _build_response(ctx, group_id, rows, outcomes)


def _check_renewal(req: ShareFetchRequest) -> None:
    if not req.is_renew_ack:
        return
    limits = {
        "maxBytes": req.max_bytes,
        "minBytes": req.min_bytes,
        "maxRecords": req.max_records,
        "maxWaitMs": req.max_wait_ms,
    }
    wrong = [name for name, value in limits.items() if value]
    if wrong:
        text = f"{', '.join(wrong)} must be set to 0, if isRenewAck is true."
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


async def _find_session(
    ctx: RequestContext,
    req: ShareFetchRequest,
    added: list[Place],
    forgotten: list[Place],
    *,
    settles: bool,
) -> ShareSession | None:
    """Return the session of a request, with its changes; None for one that ends it. Raises
    KafkaError."""
    shares = ctx.broker.shares
    sessions, group_id, member = shares.sessions, req.group_id or "", req.member_id or ""
    epoch = req.share_session_epoch
    if epoch == FINAL:
        sessions.find(group_id, member)
        return None
    if epoch != NEW_SESSION:
        session = sessions.continue_session(group_id, member, epoch)
        sessions.update(session, added, forgotten)
        return session
    if settles:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    try:
        session = sessions.create_session(group_id, member, added, ctx.connection)
    except KafkaError:
        # Otherwise clients that find no room would try again without a pause.
        ctx.park()
        await ctx.broker.env.sleep(min(max(req.max_wait_ms, 0), LIMIT_WAIT_MAX_MS) / 1000)
        raise
    closing = shares.on_close(ctx.connection)
    ctx.closing[closing] = None
    if ctx.is_gone():
        closing()
        raise ClientGone
    return session


LIMIT_WAIT_MAX_MS = 30_000
"""Longest wait of a request that finds no room for its session: clients give up after it."""


async def _build_response(
    ctx: RequestContext,
    group_id: str,
    rows: dict[Place, PartitionData],
    outcomes: dict[Place, AckOutcome],
) -> ShareFetchResponse:
    settings = ctx.broker.config.share_group_settings(group_id)
    hints = Hints(ctx)
    for place, outcome in outcomes.items():
        row = rows.setdefault(place, PartitionData(place[1]))
        row.acknowledge_error_code = int(outcome.code)
        row.acknowledge_error_message = outcome.message
        await ctx.give_way()
    topics: dict[bytes, ShareFetchableTopicResponse] = {}
    for place, row in rows.items():
        topic_id = place[0]
        if topic_id not in topics:
            topics[topic_id] = ShareFetchableTopicResponse(topic_id)
        row.current_leader = hints.find(place, ErrorCode(row.error_code))
        topics[topic_id].partitions.append(row)
        await ctx.give_way()
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=settings.record_lock_duration_ms,
        responses=list(topics.values()),
        node_endpoints=hints.endpoints(),
    )
