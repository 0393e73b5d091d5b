"""InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary: the states of share partitions, for other brokers (KIP-932).

WriteShareGroupState and ReadShareGroupStateSummary v1 have the number of complete deliveries
(KIP-1226). Each share partition has its own answer, after the commit of what its request changes.
"""

from __future__ import annotations

import asyncio

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import RequestContext
from kafkawire.share.state.machine import StateAnswer, StateRequest
from kafkawire.share.state.service import ShareStateService, coordinator_key
from kafkawire.share.state.wire import StateMessage, StateResponse, parse_message, response_steps

MAX_UNANSWERED = 1_000
"""Share partitions of one request that wait for the same commit."""


async def share_group_states(ctx: RequestContext, req: StateMessage) -> StateResponse:
    """Have the share coordinators decide on each share partition. An incomplete request has an
    empty answer, as in Kafka."""
    if not ctx.broker.config.share_version:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not req.group_id or not req.topics or not all(topic.partitions for topic in req.topics):
        req.topics = []
    service = await ctx.broker.load_share_states()
    answers: list[StateAnswer] = []
    waiting: list[asyncio.Future[StateAnswer]] = []
    for request in parse_message(req):
        waiting.append(_submit(service, request))
        if len(waiting) == MAX_UNANSWERED:
            answers += [await future for future in waiting]
            waiting.clear()
        await ctx.give_way()
    if not all(future.done() for future in waiting):
        ctx.park()
    answers += [await future for future in waiting]
    return await ctx.broker.env.slices.run(response_steps(req, answers))


def _submit(service: ShareStateService, request: StateRequest) -> asyncio.Future[StateAnswer]:
    answer = service.handle_request(request)
    if answer is None:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result(StateAnswer(service.absence(coordinator_key(request.key))))
    return answer
