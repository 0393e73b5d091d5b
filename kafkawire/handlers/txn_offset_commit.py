"""TxnOffsetCommit v0-6: store the offsets of a group within a transaction.

v2 leader epoch; v3 flexible, member, instance and generation (KIP-447); v4 TRANSACTION_ABORTABLE;
v5 adds the partition of the group to the transaction (KIP-890); v6 topics by id. Topics are checked
first, then the transaction, then the group.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kafkawire.broker.read_only import COMMIT_LATER, check_commits
from kafkawire.codec.errors import ErrorCode
from kafkawire.groups.model.request import TXN_COMMIT, VerifiedCommit
from kafkawire.groups.model.transactional import client_code
from kafkawire.handlers.clients import client_of, partition_error, readable_topic_of
from kafkawire.handlers.context import RequestContext
from kafkawire.handlers.portions import Portions
from kafkawire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from kafkawire.metadata.catalog import TopicInfo

BY_ID_FROM = 6


class _Entry(NamedTuple):
    """One partition to commit, and its position in the response."""

    info: TopicInfo
    commit: TxnOffsetCommitRequestPartition
    answer: TxnOffsetCommitResponsePartition


async def txn_offset_commit(
    ctx: RequestContext, req: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Commit offsets in a transaction. Missing partitions are rejected individually; the
    transaction is verified once for the rest, on which the group decides in portions."""
    check_commits(ctx.broker.config, COMMIT_LATER)
    response, entries = await _existing(ctx, req)
    if not entries:
        return response
    groups = ctx.broker.groups
    verified = await groups.verify_transaction(ctx.version, req)
    if verified.code is not ErrorCode.NONE:
        for entry in entries:
            entry.answer.error_code = client_code(int(verified.code), ctx.version)
            await ctx.give_way()
        await ctx.empty_slowly(entries)
        return response

    def ask(part: list[_Entry]) -> asyncio.Future[TxnOffsetCommitResponse]:
        commit = VerifiedCommit(_part(req, part), verified.guard)
        return groups.handle_request(TXN_COMMIT, client_of(ctx), ctx.version, commit)

    def on_answer(part: list[_Entry], decided: TxnOffsetCommitResponse) -> bool:
        codes = (entry.error_code for topic in decided.topics for entry in topic.partitions)
        for entry, code in zip(part, codes, strict=True):
            entry.answer.error_code = client_code(code, ctx.version)
        return True

    portions = Portions(ctx, ask, on_answer)
    for entry in entries:
        if entry.info.id in ctx.broker.catalog.by_id:
            await portions.add(entry)
        else:  # deleted while the transaction was verified
            entry.answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            await ctx.give_way()
    await portions.send_rest(always=False)
    await ctx.empty_slowly(entries)
    return response


async def _existing(
    ctx: RequestContext, req: TxnOffsetCommitRequest
) -> tuple[TxnOffsetCommitResponse, list[_Entry]]:
    """Return the response, with the errors of partitions that do not exist, and the others."""
    response = TxnOffsetCommitResponse()
    entries: list[_Entry] = []
    for topic in req.topics:
        info, code = readable_topic_of(ctx, topic.name, topic.topic_id, ctx.version >= BY_ID_FROM)
        answers: list[TxnOffsetCommitResponsePartition] = []
        response.topics.append(
            TxnOffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=answers
            )
        )
        for commit in topic.partitions:
            if info is not None:
                code = partition_error(info, commit.partition_index)
            answer = TxnOffsetCommitResponsePartition(
                partition_index=commit.partition_index, error_code=int(code)
            )
            answers.append(answer)
            if info is not None and code is ErrorCode.NONE:
                entries.append(_Entry(info, commit, answer))
            await ctx.give_way()
        await ctx.give_way()
    return response, entries


def _part(req: TxnOffsetCommitRequest, entries: list[_Entry]) -> TxnOffsetCommitRequest:
    topics: list[TxnOffsetCommitRequestTopic] = []
    for entry in entries:
        if not topics or topics[-1].name != entry.info.name:
            topics.append(TxnOffsetCommitRequestTopic(name=entry.info.name, topic_id=entry.info.id))
        topics[-1].partitions.append(entry.commit)
    return TxnOffsetCommitRequest(
        transactional_id=req.transactional_id,
        group_id=req.group_id,
        producer_id=req.producer_id,
        producer_epoch=req.producer_epoch,
        generation_id=req.generation_id,
        member_id=req.member_id,
        group_instance_id=req.group_instance_id,
        topics=topics,
    )
