"""The rows of the table of settings that are about the remote tier; data only.

`remote.*` and `local.*` are Kafka's (KIP-405, KIP-950, KIP-956), `tieredStorageLevel` is
RocketMQ's, `tier.*`, `tiering.*` and those of log objects (durability=s3) are our own. Their
combined rules are in `tier_rules.py` and `durability_rules.py`.
"""

from __future__ import annotations

from kafkawire.codec.configs.row import HOUR_MS, INT64_MAX, MIB, B, Config, D, I, L, S, of_topic

LEVELS = ("disable", "not-in-disk", "not-in-mem", "force")

STORAGE_CLASSES = (
    "", "STANDARD", "INTELLIGENT_TIERING", "STANDARD_IA", "ONEZONE_IA", "GLACIER_IR",
    "REDUCED_REDUNDANCY",
)  # fmt: skip

# fmt: off
TIER_TOPIC_ROWS = (
    of_topic("local.retention.bytes", L, -2, "log.local.retention.bytes",
           "Bytes of each partition that stay on local disk with a remote tier; -2: as "
           "retention.bytes. What is not uploaded yet stays whatever this says.", -2),
    of_topic("local.retention.ms", L, -2, "log.local.retention.ms",
           "How long records stay on local disk with a remote tier; -2: as retention.ms. What "
           "is not uploaded yet stays whatever this says.", -2),
    of_topic("remote.copy.lag.bytes", L, -1, "log.remote.copy.lag.bytes",
           "With remote.copy.lag.ms: objects with so many bytes are uploaded without waiting; -1: "
           "as local.retention.bytes; 0: nothing waits.", -1),
    of_topic("remote.copy.lag.ms", L, 0, "log.remote.copy.lag.ms",
           "How long uploads wait for more records (KIP-1241): it counts as tiering.max.lag.ms "
           "where that is less, except for topics with durability=s3; -1: as local.retention.ms; "
           "0: uploads wait as tiering.* says.", -1),
    of_topic("remote.log.copy.disable", B, False, "",
           "Nothing more is copied to the remote tier; what is there is read and expires there."),
    of_topic("remote.log.delete.on.disable", B, False, "",
           "Must be true where remote.storage.enable becomes false: what is only in the remote "
           "tier is deleted then, and the log starts with what is on local disk."),
    of_topic("remote.storage.enable", B, False, "",
           "Whether records are copied to the remote tier and may leave the local disk. Without "
           "the setting: true where the broker has a tier (tier.url)."),
    of_topic("tieredStorageLevel", S, "not-in-disk", "",
           "When records are read from the remote tier: disable: never; not-in-disk: those that "
           "local disk has no more; not-in-mem: also those that are not in memory; force: all "
           "that are uploaded. Case, - and _ do not matter.", choices=LEVELS, loose=True),
    of_topic("tiering.max.lag.ms", L, 300_000, "tiering.max.lag.ms",
           "The longest a record may wait before it is in the remote tier. Of internal topics "
           "(__consumer_offsets) at most the least of any tiered topic.", 5_000),
    of_topic("tiering.min.object.bytes", L, 8 * MIB, "tiering.min.object.bytes",
           "The smallest object worth a request before tiering.max.lag.ms asks for it.", 0),
)

TIER_BROKER_ROWS = (
    Config("tier.url", S, "",
           "The remote tier: s3://BUCKET/PREFIX, a folder, or a plug-in (docs/plugins.md); "
           "empty: there is none."),
    Config("log.object.linger.ms", I, 100,
           "With topics of durability=s3: the longest time from the first byte of a log object to "
           "the start of its PUT. A record waits half of it on average; each object is a request.",
           at_least=0, at_most=60_000),
    Config("log.object.bytes", I, 8 * MIB,
           "A log object with so many bytes is stored at once.",
           at_least=64 * 1024, at_most=64 * MIB),
    Config("log.unreleased.max.bytes", L, 1 << 30,
           "The most bytes of log objects whose records are not yet uploaded in segments, which a "
           "start reads at most; when it is reached, produces to topics of durability=s3 are "
           "refused.",
           at_least=16 * MIB),
    Config("tier.cache.bytes", L, 128 * MIB,
           "Memory for what is read from the remote tier, shared by all readers.",
           at_least=16 * MIB, at_most=1 << 40),
    Config("tier.part.bytes", L, 16 * MIB,
           "Size of the parts in which large objects are uploaded.",
           at_least=5 * MIB, at_most=5 << 30),
    Config("tier.upload.buffer.bytes", L, 256 * MIB,
           "The most bytes whose upload has been begun and is not finished; one segment of any "
           "size is always taken.", at_least=MIB),
    Config("tier.upload.threads", I, 4, "Uploads at a time.", at_least=1, at_most=64),
    Config("tier.read.threads", I, 16, "Reads from the remote tier at a time.",
           at_least=1, at_most=256),
    Config("tier.s3.storage.class", S, "",
           "The storage class of segments in S3; empty: the bucket's default. Manifest and owner "
           "stay in the default. Classes whose objects cannot be read at once are not allowed.",
           choices=STORAGE_CLASSES),
    Config("tier.delete.delay.ms", L, HOUR_MS,
           "How long an object stays after the manifest has said that it is deleted: who reads "
           "the bucket without the broker may still be at it.", at_least=0),
    Config("tier.manifest.fold", I, 64,
           "After so many deltas of the manifest they are folded into a snapshot.",
           at_least=2, at_most=10_000),
    Config("tier.retry.max.ms", L, 60_000,
           "The longest wait before something that failed in the remote tier is tried again.",
           at_least=100),
    Config("tier.hedge.percentile", I, 95,
           "A read from the remote tier that takes longer than this percentile of the last ones "
           "is asked for a second time; 100: never.", at_least=50, at_most=100),
    Config("tier.paused", B, False,
           "Nothing is uploaded to the remote tier or deleted there; reads go on.", dynamic=True),
    Config("tier.fenced.action", S, "refuse",
           "What happens to Produce requests while another broker owns the remote tier: refuse: "
           "they are answered with NOT_LEADER_OR_FOLLOWER, since their records could never be "
           "uploaded; serve: they are accepted. Reads go on in either case.",
           choices=("refuse", "serve"), dynamic=True),
    Config("tier.missing.action", S, "refuse",
           "What happens at a start without tier.url of a broker whose records are in a remote "
           "tier: refuse: the start ends with an error; serve: only what is on the local disk is "
           "served, reads of other records fail, and nothing is uploaded.",
           choices=("refuse", "serve")),
    Config("tier.prices", S, "aws-s3-standard",
           "What requests and storage cost: the name of a price table, or KIND=PRICE,... (see "
           "docs/tiering.md)."),
    Config("tier.budget.month", D, 0.0,
           "What the remote tier may cost in a calendar month (UTC), in the currency of the "
           "prices: a warning at 80 % and at 100 % of it; 0: no budget.",
           at_least=0, dynamic=True),
    Config("remote.log.manager.copy.max.bytes.per.second", L, INT64_MAX,
           "The most bytes a second that are uploaded to the remote tier.",
           at_least=1, dynamic=True),
    Config("remote.log.manager.fetch.max.bytes.per.second", L, INT64_MAX,
           "The most bytes a second that are read from the remote tier.",
           at_least=1, dynamic=True),
    Config("remote.fetch.max.wait.ms", I, 500,
           "The longest a Fetch waits for the remote tier before it is answered without; what "
           "was asked for is there for the next one.", at_least=1, dynamic=True),
    Config("remote.list.offsets.request.timeout.ms", L, 30_000,
           "The longest a ListOffsets by time that does not say how long waits for the remote "
           "tier.", at_least=1, dynamic=True),
)
# fmt: on
