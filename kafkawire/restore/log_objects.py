"""Log objects (durability=s3) in a restore from a bucket: which ones the broker has to read, and
which topics and partitions they have.

Their records are not read here: the restored broker gets the logs in SQL, and its start appends
what its journals do not have, as after the loss of a data folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from kafkawire.codec.configs.durability_rules import DURABILITY, S3
from kafkawire.codec.format_errors import NewerFormatError
from kafkawire.log.append.object_sink import MAX_STORING
from kafkawire.log.io.ports import Env, LogError
from kafkawire.log.journal.format import Naming
from kafkawire.log.objects.format import (
    HEADER_BYTES,
    LogObjectError,
    ObjectHead,
    copy_into,
    read_header,
    read_names,
)
from kafkawire.manifest.keys import LOGS, log_object_key, parse_log_object_key
from kafkawire.objectstore.errors import NoSuchObject
from kafkawire.offsets.catalog.object_logs import ObjectLog
from kafkawire.plural import count
from kafkawire.progress import Progress
from kafkawire.restore.evidence import (
    INTERNAL_TOPICS,
    BucketEvidence,
    DoubtKind,
    LogSeen,
    TopicSeen,
)
from kafkawire.tiering.store.port import ObjectStore
from kafkawire.tiering.store.retrying import RetryingCalls, side_by_side
from kafkawire.tiering.store.store_folder import StoreFolder
from kafkawire.tiering.store.tiers import folder_of, own_url

FIRST_BYTES = 64 << 10
"""Bytes of an object that are read for its head: the names of about 1,000 partitions."""
COMPACTED = {"cleanup.policy": "compact"}
"""Settings that internal topics cannot do without, if a bucket does not have theirs."""


async def gather_logs(
    env: Env, store: ObjectStore, nodes: Sequence[int], seen: BucketEvidence, progress: Progress
) -> None:
    """Add the logs in the folders of brokers, and the topics and partitions in their objects, to
    the evidence of the whole tier. Damaged objects become doubts. Raises StoreError, and
    JournalFormatError for an object of a newer program."""
    for node in nodes:
        asking = RetryingCalls(env, StoreFolder(store, folder_of(node)))
        sizes = await _listing(asking)
        for epoch in sorted(sizes):
            await _Log(asking, seen, node, epoch, sizes[epoch]).gather(progress)
    if seen.node_id is None and seen.logs:
        seen.node_id = seen.logs[0].node_id


async def _listing(asking: RetryingCalls) -> dict[int, dict[int, int]]:
    """Return the sizes of log objects by broker epoch and sequence number."""
    sizes: dict[int, dict[int, int]] = defaultdict(dict)
    async for page in asking.pages(LOGS):
        for listed in page:
            parsed = parse_log_object_key(listed.key)
            if parsed is not None:
                epoch, sequence = parsed
                sizes[epoch][sequence] = listed.size_bytes
    return sizes


def find_needed(sequences: Sequence[int], fence: int | None) -> range:
    """Return the sequence numbers to read, of the ascending ones that are there. With a fence they
    are all below it; without one the log ends before a number that was being stored, and begins
    after one that was deleted."""
    if fence is not None:
        return range(min(fence, sequences[0]), fence)
    there = set(sequences)
    last = sequences[-1]
    end = last + 1
    # So many are stored at a time: a number that is missing near the end was never acknowledged,
    # and neither was anything after it.
    for at in range(max(last - MAX_STORING + 1, sequences[0]), last):
        if at not in there:
            end = at
            break
    # Objects are deleted only when everything below them is released, so the one before the last
    # missing number was, too.
    start = end
    while start - 1 in there:
        start -= 1
    return range(start, end)


class _Log:
    """One log. `sizes`: of its objects, by sequence number."""

    def __init__(
        self,
        asking: RetryingCalls,
        seen: BucketEvidence,
        node_id: int,
        epoch: int,
        sizes: Mapping[int, int],
    ) -> None:
        self._asking = asking
        self._seen = seen
        self._node_id = node_id
        self._epoch = epoch
        self._sizes = sizes

    async def gather(self, progress: Progress) -> None:
        sequences = sorted(self._sizes)
        fence = await self._fence(sequences)
        log = find_needed(sequences, fence)
        self._doubt_left_out(sequences, log, fence)
        there = [at for at in log if at in self._sizes]
        for found in await side_by_side(there, self._names, "log objects", progress):
            self._take(*found)
        self._seen.logs.append(
            LogSeen(
                self._node_id, self._epoch, log.start, log.stop, fence is not None,
                sum(self._sizes[at] for at in there),
            )
        )  # fmt: skip

    async def _fence(self, sequences: Sequence[int]) -> int | None:
        """Return the lowest sequence number of a fence, which has no more than a header."""
        for at in sequences:
            # By its size first: no other object has a header only.
            if self._sizes[at] == HEADER_BYTES:
                head, _ = await self._names(at)
                if head is not None and head.is_fence:
                    return at
        return None

    async def _names(self, sequence: int) -> tuple[ObjectHead | None, Mapping[int, Naming]]:
        """Return head and names of an object; None if it cannot be read."""
        key = log_object_key(self._epoch, sequence)
        try:
            data, _ = await self._asking.get(key, 0, FIRST_BYTES)
            head = read_header(data, key)
            if len(data) < head.frames_start:
                data, _ = await self._asking.get(key, 0, head.frames_start)
            return head, read_names(data, head)
        except NoSuchObject:
            why = f"{self._whole(key)} is gone"
        except LogObjectError as failure:
            why = f"{self._whole(key)} cannot be read: {failure}"
        except LogError as failure:
            raise NewerFormatError(str(failure)) from failure
        self._seen.add_doubt(DoubtKind.LOG, why)
        return None, {}

    def _take(self, head: ObjectHead | None, names: Mapping[int, Naming]) -> None:
        """Take topics and partitions that the manifest does not have, or not as they were later."""
        seen = self._seen
        for number, naming in names.items():
            topic = seen.topics.get(naming.topic_id)
            if topic is None:
                topic = seen.topics[naming.topic_id] = _topic(naming)
                seen.add_doubt(DoubtKind.LOG, f"topic {topic.name} is in log objects only")
            topic.numbers.setdefault(naming.index, number)
            topic.count = max(topic.count, naming.index + 1)
            if head is not None and not topic.described:
                topic.seen_ms = max(topic.seen_ms, head.created_ms)
            partition = seen.get_or_add(number)
            partition.epoch = max(partition.epoch, naming.leader_epoch)
            partition.log_start = max(partition.log_start, naming.log_start)

    def _doubt_left_out(self, sequences: Sequence[int], log: range, fence: int | None) -> None:
        below = sum(at < log.start for at in sequences)
        above = sum(at >= log.stop and at != fence for at in sequences)
        prefix = self._whole(log_object_key(self._epoch, log.start)).rpartition("/")[0]
        if below:
            self._seen.add_doubt(
                DoubtKind.LOG,
                f"{count(below, 'log object')} of {prefix} before a missing one: left out, since "
                "that was deleted when the records up to it were in segments",
            )
        if above:
            self._seen.add_doubt(
                DoubtKind.LOG,
                f"{count(above, 'log object')} of {prefix} after the end of the log: left out, "
                "since their records were not acknowledged",
            )

    def _whole(self, key: str) -> str:
        return f"{folder_of(self._node_id)}/{key}"


def _topic(naming: Naming) -> TopicSeen:
    internal = naming.topic in INTERNAL_TOPICS
    configs = {DURABILITY: S3, **(COMPACTED if internal else {})}
    return TopicSeen(
        naming.topic_id, naming.topic, internal, configs=configs, described=False, seen_ms=-1
    )


def log_rows(logs: Sequence[LogSeen], node_id: int, url: str, now_ms: int) -> list[ObjectLog]:
    """Return the rows of the logs of a broker, whose `tier.url` is `url`."""
    return [
        ObjectLog(
            node_id, log.broker_epoch, own_url(url, node_id), log.released,
            log.end if log.fenced else None, now_ms,
        )
        for log in logs
        if log.node_id == node_id
    ]  # fmt: skip


async def copy_others(
    env: Env, store: ObjectStore, logs: Sequence[LogSeen], node_id: int, progress: Progress
) -> list[LogSeen]:
    """Copy the logs of other brokers to a broker that takes all partitions, as logs of earlier
    lives of it; return the logs of that broker. Raises StoreError."""
    own = [log for log in logs if log.node_id == node_id]
    others = [log for log in logs if log.node_id != node_id and log.released < log.end]
    # Epochs that no log has, so a restore that is repeated copies again, which does no harm.
    epoch = max([log.broker_epoch for log in logs], default=0)
    target = RetryingCalls(env, StoreFolder(store, folder_of(node_id)))
    for log in others:
        epoch += 1
        source = RetryingCalls(env, StoreFolder(store, folder_of(log.node_id)))
        copied = 0
        for at in range(log.released, log.end):
            progress("copied log objects", at - log.released, log.end - log.released)
            key = log_object_key(log.broker_epoch, at)
            try:
                data = await source.whole(key)
                data = copy_into(data, key, node_id, epoch, copied)
            # A doubt names it already.
            except (NoSuchObject, LogError):
                continue
            await target.put_new(log_object_key(epoch, copied), data)
            copied += 1
        own.append(LogSeen(node_id, epoch, 0, copied, False, log.size_bytes))
    return own
