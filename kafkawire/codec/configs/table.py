"""The table of settings: one row for every topic and broker setting this broker supports.

Names, types, defaults and bounds are Kafka 4.x's (`LogConfig`, `ServerLogConfigs`,
`GroupCoordinatorConfig`, ...); settings of our own have one-word or `journal.*`-like names that
Kafka does not use. A row whose `effect` is not FULL is accepted because clients and scripts set it,
and its sentence says what is not implemented.

Only data; the rows of the remote tier are in `tier_rows.py`. Parsing, checking and the
typed objects are in `settings.py`.
"""

from __future__ import annotations

from dataclasses import replace

from kafkawire.codec.configs.group_rows import GROUP_BROKER_ROWS
from kafkawire.codec.configs.row import (
    DAY_MS,
    DOUBLE_MAX,
    HOUR_MS,
    INT32_MAX,
    INT64_MAX,
    LIST,
    MIB,
    MINUTE_MS,
    NO,
    B,
    Config,
    ConfigType,
    D,
    I,
    L,
    S,
    of_topic,
)
from kafkawire.codec.configs.security_rows import ACCESS_BROKER_ROWS, SASL_ROWS, TLS_BROKER_ROWS
from kafkawire.codec.configs.share_rows import SHARE_BROKER_ROWS
from kafkawire.codec.configs.streams_rows import STREAMS_BROKER_ROWS
from kafkawire.codec.configs.tier_rows import TIER_BROKER_ROWS, TIER_TOPIC_ROWS

_REPLICAS = r"[0-9]+:[0-9]+"
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

COMPRESSION_TYPES = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
"""Values of compression.type, in the order of the codec ids of `kafkawire.codec.compression`, which
this does not import: commands that read settings need no codecs."""
PRODUCER = "producer"
"""The value of compression.type for batches that stay as they were sent."""

# fmt: off
_TOPIC_ROWS = (
    of_topic("cleanup.policy", LIST, ["delete"], "log.cleanup.policy",
           "delete: old records go by time and size; compact: the last record of each key stays. "
           "Records of a compacted topic need keys.", choices=("compact", "delete")),
    of_topic("compression.type", S, "producer", "compression.type",
           "How batches are stored: as the producer sent them, or rewritten with this codec.",
           choices=(COMPRESSION_TYPES[0], *COMPRESSION_TYPES[:0:-1], PRODUCER)),
    of_topic("compression.gzip.level", I, -1, "compression.gzip.level",
           "Level where compression.type is gzip; -1 is gzip's own default.", 1, 9, also=-1),
    of_topic("compression.lz4.level", I, 9, "compression.lz4.level",
           "Level where compression.type is lz4.", 1, 17),
    of_topic("compression.zstd.level", I, 3, "compression.zstd.level",
           "Level where compression.type is zstd.", -131072, 22),
    of_topic("delete.retention.ms", L, DAY_MS, "log.cleaner.delete.retention.ms",
           "How long a tombstone of a compacted topic stays after the first cleaning that met "
           "it.", 0),
    of_topic("durability", S, "local", "",
           "What must have a record before it is acknowledged and read. local: the disk of the "
           "broker, as `flush` says. s3: the remote tier, so that acknowledged records survive the "
           "loss of the machine and its disk (docs/durability.md); needs tier.url, and acks=1 "
           "waits as acks=all does. replicated: the disks of this machine and of all in-sync "
           "followers (docs/durability.md); needs tier.url, too. Fixed when the topic is "
           "created. Without the setting a new topic gets the broker's `durability`, and one of "
           "an earlier version has local.",
           choices=("local", "s3", "replicated"), dynamic=False),
    of_topic("errors.deadletterqueue.group.enable", B, False, "",
           "Whether share groups may write their dead letters to the topic (KIP-1191)."),
    of_topic("file.delete.delay.ms", L, 60_000, "log.segment.delete.delay.ms",
           "How long a file stays when nothing in it is needed any more. Of topics that share a "
           "file the longest counts. Files that leave for the remote tier: as the broker says.", 0),
    of_topic("flush.messages", L, INT64_MAX, "log.flush.interval.messages",
           "Kafka's fsync after so many records. Here the broker's `flush` decides for all topics.",
           1, effect=NO),
    of_topic("flush.ms", L, INT64_MAX, "log.flush.interval.ms",
           "Kafka's fsync after so long. Here the broker's `flush` decides for all topics.",
           0, effect=NO),
    of_topic("follower.replication.throttled.replicas", LIST, [], "",
           "Replicas whose copying is throttled. There are no followers here.",
           item_pattern=_REPLICAS, effect=NO),
    of_topic("leader.replication.throttled.replicas", LIST, [], "",
           "Replicas whose copying is throttled. There are no followers here.",
           item_pattern=_REPLICAS, effect=NO),
    of_topic("index.interval.bytes", I, 4096, "log.index.interval.bytes",
           "Kafka's distance between index entries. Here every write has an entry.",
           0, effect=NO),
    of_topic("index.keys.enable", B, False, "",
           "Whether segments have an index of the keys of records, for readers that search for a "
           "key: 2.5 bytes a record and at most 3 % of the batches; a cut takes two fifths more "
           "CPU with records of 100 bytes, a sixth with 1 KB, the worker process 120 MB more. "
           "Needs kafkawire[keys]; without it segments have none. Compressed batches are indexed "
           "by merges and compactions only, for which they are decompressed. Older segments get it "
           "when they are rewritten."),
    of_topic("max.compaction.lag.ms", L, INT64_MAX, "log.cleaner.max.compaction.lag.ms",
           "From this age of its oldest uncleaned record on a partition is cleaned whatever "
           "its dirty ratio.", 1),
    of_topic("max.decompressed.message.bytes", I, INT32_MAX - 8, "max.decompressed.message.bytes",
           "The largest record taken in a compressed batch, in bytes. Whatever it is, the records "
           "of such a batch may have 64 MiB together, or four times the bytes of the batch.", 0),
    of_topic("max.message.bytes", I, 1048588, "message.max.bytes",
           "The largest record batch taken, in bytes, after compression.", 0),
    of_topic("message.timestamp.after.max.ms", L, HOUR_MS, "log.message.timestamp.after.max.ms",
           "How far a record's timestamp may lie after the broker's clock.", 0),
    of_topic("message.timestamp.before.max.ms", L, INT64_MAX, "log.message.timestamp.before.max.ms",
           "How far a record's timestamp may lie before the broker's clock.", 0),
    of_topic("message.timestamp.type", S, "CreateTime", "log.message.timestamp.type",
           "Whether records keep the producer's timestamp or get the time they were appended.",
           choices=("CreateTime", "LogAppendTime")),
    of_topic("min.cleanable.dirty.ratio", D, 0.5, "log.cleaner.min.cleanable.ratio",
           "A partition is cleaned when more than this part of its bytes in segments has not "
           "been cleaned yet.", 0, 1),
    of_topic("min.compaction.lag.ms", L, 0, "log.cleaner.min.compaction.lag.ms",
           "The least time a record of a compacted topic stays as it is.", 0),
    of_topic("min.insync.replicas", I, 1, "min.insync.replicas",
           "Replicas that must have a record before acks=all is answered. With "
           "durability=replicated the in-sync followers and the leader count; with another "
           "durability there is one replica. With fewer, acks=all is refused with "
           "NOT_ENOUGH_REPLICAS.", 1),
    of_topic("preallocate", B, False, "log.preallocate",
           "Kafka's preallocation of segment files. Here journals are recycled.", effect=NO),
    of_topic("retention.bytes", L, -1, "log.retention.bytes",
           "Bytes kept for each partition; -1: no limit. Records go with their part of a segment "
           "or journal, so more may stay: the newest, and on disk any in which something lives."),
    of_topic("retention.ms", L, 7 * DAY_MS, "log.retention.ms",
           "How long records are kept; -1: for ever. Records go with their part of a segment or "
           "journal, the file itself when nothing in it lives.", -1,
           units=(("log.retention.minutes", MINUTE_MS, None),
                  ("log.retention.hours", HOUR_MS, 168))),
    of_topic("schedule.target.topic", S, "", "",
           "Makes it a schedule topic: its records are delivered to this topic when they are due, "
           "by their timestamp or a header. Empty: none."),
    of_topic("schedule.target.header", S, "", "",
           "Makes it a schedule topic: its records are delivered when they are due, to the topic "
           "that their header of this name names. Empty: none."),
    of_topic("segment.bytes", I, 1 << 30, "log.segment.bytes",
           "The most bytes of a partition in one segment. A partition that has so many in the "
           "journals has them rolled and cut into segments at once.", MIB),
    of_topic("segment.index.bytes", I, 10 * MIB, "log.index.size.max.bytes",
           "Kafka's size of an index file. Here an index is as large as it needs to be.",
           4, effect=NO),
    of_topic("segment.jitter.ms", L, 0, "log.roll.jitter.ms",
           "Kafka's random part of segment.ms. Here topics share journals, which are rolled once "
           "for all of them.",
           0, units=(("log.roll.jitter.hours", HOUR_MS, 0),), effect=NO),
    of_topic("segment.ms", L, 7 * DAY_MS, "log.roll.ms",
           "However few they are, records leave the newest journal after so long, and come into a "
           "segment after as long again; if journal.roll.ms is less, after that.",
           1, units=(("log.roll.hours", HOUR_MS, 168),)),
    of_topic("unclean.leader.election.enable", B, False, "unclean.leader.election.enable",
           "Lets an out-of-sync replica become leader. There is one replica, which always leads.",
           effect=NO),
    of_topic("view.filter", S, "", "",
           "Which records of the source topic a view topic has (docs/views.md), for example "
           "header('region') == 'eu' and value.amount > 100. Empty: all of them."),
    of_topic("view.source.topic", S, "", "",
           "Makes it a view topic: readers get the records of this topic that match view.filter, "
           "with their offsets. It has no records of its own. Fixed when the topic is created. "
           "Empty: none.", dynamic=False),
    *TIER_TOPIC_ROWS,
)

_BROKER_ROWS = (
    Config("node.id", I, 1,
           "The number of this broker in the cluster. 1, as in the configuration that Apache Kafka "
           "ships with: test suites and tools expect the numbers of brokers to start at 0 or 1.",
           at_least=0),
    Config("broker.rack", S, None, "The rack that clients receive with the broker's address."),
    Config("replica.selector.class", S, None,
           "Where consumers read. Empty: at the leader. With Kafka's RackAwareReplicaSelector a "
           "consumer whose client.rack is not the leader's is sent to a broker of its rack for "
           "records that are in the remote tier, and with durability=replicated for all; the "
           "others are read at the leader. Set it at all brokers "
           "([cluster.md](cluster.md#reading-in-the-clients-rack)).",
           choices=("", RACK_AWARE)),
    Config("lease.ms", I, 5000,
           "A broker whose heartbeat in the metadata database does not change for so long, while "
           "this broker can read it, is not alive: clients are not sent to it, and it gets no new "
           "partitions. Brokers store a heartbeat each second if there are several.",
           at_least=3000),
    Config("broker.draining", B, False,
           "Whether this broker hands over the partitions that it leads to brokers that write to "
           "the same data folder (`serve --workers`), and gets no new ones. Set it for one broker, "
           "never for all.", dynamic=True),
    Config("broker.decommissioning", B, False,
           "Whether this broker is to leave the cluster: it hands over its partitions as with "
           "broker.draining, their new leaders copy the segments that it wrote, and once nothing "
           "is left it unregisters itself and ends. Set by `kafkawire cluster decommission`; see "
           "[cluster.md](cluster.md#removing-a-broker).", dynamic=True),
    Config("broker.returning", B, False,
           "Whether this broker, which another machine has taken over, is to end there, since its "
           "own machine runs again. Set by that machine; see cluster.takeover.enable.",
           dynamic=True),
    Config("broker.stopping", B, False,
           "Whether this broker hands over its partitions because it stops: no other broker moves "
           "one to it. Set by the broker, and removed when it starts again.", dynamic=True),
    Config("controlled.shutdown.enable", B, True,
           "Whether this broker, when it is stopped, first hands over what it leads of topics with "
           "durability=s3 or replicated to brokers with other data folders, for at most 20 "
           "seconds. The partitions come back when it is started again."),
    Config("cluster.takeover.enable", B, False,
           "With `serve --workers`: whether this machine starts brokers of other machines that are "
           "not alive, with topics of durability=s3 or replicated only, and gives them back when "
           "their machine runs again. Set it on all machines of a cluster."),
    Config("cluster.takeover.ports", S, "",
           "Ports of the addresses of brokers that this machine takes over, as in --worker-ports: "
           "9193-9196, with several listeners NAME://9193-9196. Each gets the first one that no "
           "other has, and not more are taken over than there are ports. Without it they get ports "
           "that the system chooses."),
    Config("cluster.return.delay.ms", I, 30_000,
           "How long the machine of a broker that another one has taken over runs until the broker "
           "is moved back to it.", at_least=0),
    Config("cluster.name", S, "",
           "The name of the cluster in `kafkawire cluster describe`, metrics, /health and the log: "
           "at most 100 printable characters. Set it for all brokers at once.", dynamic=True),
    Config("broker.read.only", B, False,
           "Whether clients may only read: their records, changes of topics and deletions of "
           "records are refused "
           "([operate.md](operate.md#reading-only)).", dynamic=True),
    Config("broker.read.only.commits", B, False,
           "Whether committed offsets cannot change either, while broker.read.only is true.",
           dynamic=True),
    # topics
    Config("auto.create.topics.enable", B, True,
           "Whether asking for the metadata of an unknown topic creates it."),
    Config("delete.topic.enable", B, True, "Whether topics may be deleted."),
    Config("num.partitions", I, 1,
           "Partitions of a topic created without saying how many: at most what one request may "
           "create.", at_least=1, at_most=10_000),
    Config("default.replication.factor", I, 1,
           "Replicas of a topic created without saying how many: at most the number of brokers. "
           "The setting durability decides how many copies there are.",
           at_least=1, at_most=32767),
    Config("durability", S, "local",
           "The durability of topics that are created without the setting, internal ones "
           "(__consumer_offsets, __transaction_state, __share_group_state) included. It is stored "
           "with them: a change of this setting does not change existing topics. s3 and "
           "replicated need tier.url.", choices=("local", "s3", "replicated")),
    Config("replication.listener", S, "",
           "HOST:PORT where this machine takes copies of the logs of other machines' brokers, for "
           "topics with durability=replicated; empty: nowhere. The other brokers connect to HOST, "
           "or to the host that the first listener advertises if it is a wildcard address "
           "([durability.md](durability.md))."),
    Config("replication.advertised.listener", S, "",
           "HOST:PORT that other brokers connect to instead of replication.listener, for a machine "
           "whose own address they cannot reach: in a container with a published port, or with "
           "NAT."),
    Config("replication.security.protocol", S, "PLAINTEXT",
           "SSL: connections to the follower of this machine are encrypted with TLS 1.3. The "
           "follower makes its certificate, which brokers know from the metadata database; there "
           "is nothing else to configure. Machines may differ.",
           choices=("PLAINTEXT", "SSL")),
    Config("replica.group.size", I, 3,
           "With durability=replicated: on how many machines the log of this broker is, its own "
           "included. It is the replication factor of these topics.",
           at_least=2, at_most=9),
    Config("replica.lag.time.max.ms", I, 3000,
           "With durability=replicated: a follower that has not had everything for so long leaves "
           "the in-sync followers, for which acks=all waits (Kafka's default is 30 s).",
           at_least=500),
    Config("max.request.partition.size.limit", I, 2000,
           "The most partitions in one DescribeTopicPartitions answer.", at_least=1),
    Config("metadata.cache.bytes", L, 32 * MIB,
           "Memory for prepared Metadata answers, kept until the catalog changes.", at_least=0),
    # records
    Config("flush", S, "commit",
           "commit: an acked record (acks=all) has been fsynced and only such records are read; "
           "os: as Kafka by default, the operating system writes when it likes.",
           choices=("commit", "os")),
    Config("flush.os.ms", I, 1000, "With flush=os, how often all is fsynced in the background.",
           at_least=10),
    Config("commit.delay.ms", I, 5,
           "With flush=commit, the longest an append waits for its fsync if no request waits.",
           at_least=0, at_most=10_000),
    Config("record.validation", S, "standard",
           "How the records of batches with more than eight are checked; all others always are. "
           "standard: compressed ones are decompressed, the first and the last record are checked, "
           "and all of them where the topic needs it, or where the head of the batch contradicts "
           "those two; in batches of up to 16 records, and of records of 4 KB on average "
           "(compressed: 1 KB), the lengths of all records must add up to the batch. The newest "
           "timestamp, which a producer may have computed wrongly, is computed before records are "
           "deleted or looked up by it. Not checked is the middle of batches of more and smaller "
           "records, nor keys, values and headers of records in the middle: where a producer "
           "writes those wrongly, and its checksum fits, they are acknowledged, and consumers "
           "cannot get past them. full: every record is checked before it is acknowledged, as "
           "Kafka does; costs are in docs/performance.md. head: nothing but the head and checksum "
           "is, and the newest timestamp in it is taken for right: records may be acknowledged "
           "that no consumer can read or get past, or be deleted too early by retention.ms; only "
           "for producers that are known to be right.",
           choices=("standard", "full", "head")),
    Config("journal.bytes", L, 128 * MIB, "Size of a journal, a file of the commit log.",
           at_least=MIB, at_most=2 << 30),
    Config("journal.entries", I, 500_000,
           "The most index entries of one journal: bounds the memory of its index.",
           at_least=1000, at_most=10_000_000),
    Config("recycle.bytes", L, 512 * MIB,
           "How much of the disk is kept as old journals to be written over.", at_least=0),
    Config("journal.roll.ms", L, 600_000,
           "Age at which the newest journal is rolled though it is not full, and at which a rolled "
           "one is cut into segments though it is hot. Topics may ask for less: segment.ms, "
           "segment.bytes, retention.ms, max.compaction.lag.ms, tiering.max.lag.ms.", at_least=1),
    Config("cut.interval.ms", L, 1_000, "Interval of the check for journals to cut.",
           at_least=1),
    Config("worker.bytes.per.second", L, -1,
           "The most bytes a second that cutting reads, and so does merging; -1: as fast as it "
           "goes. Below what producers send, journals pile up.", at_least=-1, dynamic=True),
    Config("segment.dead.max.ms", L, DAY_MS // 2,
           "The longest the bytes of a deleted topic stay in a segment it shares with others.",
           at_least=1),
    Config("log.cleaner.enable", B, True,
           "Whether compacted topics are cleaned. Without, __consumer_offsets grows for ever."),
    Config("log.cleaner.threads", I, 1,
           "Kafka's number of cleaner threads. Here one process of its own cleans.",
           at_least=0, dynamic=True, effect=NO),
    Config("log.cleaner.dedupe.buffer.size", L, 128 * MIB,
           "Memory of the cleaner for the keys of one cleaning: 16 bytes a key. A partition with "
           "more keys is cleaned in several.", at_least=MIB, at_most=64 << 30, dynamic=True),
    Config("log.cleaner.io.buffer.load.factor", D, 0.9,
           "How full that memory may become.", at_least=0.1, at_most=0.95, dynamic=True),
    Config("log.cleaner.io.buffer.size", I, 512 * 1024,
           "Kafka's buffers for reading and writing. Here a mebibyte, or one batch, is read at a "
           "time.", at_least=0, dynamic=True, effect=NO),
    Config("log.cleaner.io.max.bytes.per.second", D, DOUBLE_MAX,
           "The most bytes the cleaner reads in a second; it writes no more than it reads.",
           at_least=0, dynamic=True),
    Config("log.cleaner.backoff.ms", L, 15_000,
           "Interval of the check for partitions to clean.", at_least=1, dynamic=True),
    Config("disk.warn.percent", I, 85, "From this use of its disk on the broker warns.",
           at_least=1, at_most=100),
    Config("disk.delete.percent", I, 90,
           "From this use of its disk on what retention allows to go goes at once.",
           at_least=1, at_most=100),
    Config("disk.refuse.percent", I, 97,
           "From this use of its disk on produces are refused with POLICY_VIOLATION, which clients "
           "report at once, unless more than 16 GiB are free.", at_least=1, at_most=100),
    Config("busy.disk.ms", L, 5_000,
           "While a write or an fsync takes longer than this, produces are answered at once with "
           "KAFKA_STORAGE_ERROR, which clients retry.", at_least=1),
    Config("partitions.loaded.max", I, 50_000,
           "From so many partitions in memory on idle ones leave it, until they are touched again. "
           "One takes about 4 KB.", at_least=1, dynamic=True),
    Config("hot.bytes", L, 256 * MIB,
           "The newest part of the commit log that is mapped into memory.", at_least=MIB),
    Config("uncommitted.max.bytes", L, 64 * MIB,
           "Appended but not yet fsynced bytes past which produces wait.", at_least=MIB),
    Config("slow.write.ms", I, 5, "A write slower than this moves writing to a thread for a while.",
           at_least=1),
    Config("offset.storage", S, "sql",
           "Where checkpoints and the rows of segments are kept. sql: in the database of the "
           "metadata; rocksdb: in RocksDB in the data folder (needs kafkawire[rocksdb]); memory: "
           "nowhere, so what was cut into segments is not found after a restart (for tests). "
           "Changed with a stopped broker: kafkawire offsets convert. Or the name of a plug-in "
           "(docs/plugins.md), with an empty data folder."),
    Config("plugin.hooks", LIST, [],
           "Plug-ins that are called when topics are created or deleted, segments cut, uploaded or "
           "removed, partitions change their leader, and groups rebalance, by name "
           "(docs/plugins.md)."),
    Config("log.flush.offset.checkpoint.interval.ms", I, 60_000,
           "How often the state of the partitions is checkpointed, which bounds recovery.",
           at_least=0),
    Config("log.retention.check.interval.ms", L, 300_000,
           "How often it is checked which records may go.", at_least=1),
    Config("producer.id.expiration.ms", I, DAY_MS,
           "How long the state of an idempotent producer is kept after its last batch.",
           at_least=1, dynamic=True),
    Config("producer.id.expiration.check.interval.ms", I, 600_000,
           "Interval of the check for expired producer state.", at_least=1),
    # the network
    Config("socket.request.max.bytes", I, 100 * MIB, "The largest request taken, in bytes.",
           at_least=1),
    Config("socket.listen.backlog.size", I, 50,
           "Connections the operating system holds until the broker accepts them.", at_least=1),
    Config("fetch.max.bytes", I, 55 * MIB, "The most bytes of records in one Fetch answer.",
           at_least=1024),
    Config("max.connections", I, 10_000,
           "The most connections at a time; a further one is closed at once (with Kafka it waits), "
           "or takes the place of one that has sent no request for 10 s. Kafka has no limit by "
           "default, and takes 0, with which no client can connect.", at_least=1, dynamic=True),
    Config("max.connections.per.ip", I, INT32_MAX,
           "The most connections from one address at a time; a further one is closed at once. 0 "
           "only with max.connections.per.ip.overrides.", at_least=0, dynamic=True),
    Config("max.connections.per.ip.overrides", S, "",
           "Other limits for some addresses, as ADDRESS:COUNT,ADDRESS:COUNT; an address is not a "
           "name, unlike in Kafka.", dynamic=True),
    Config("max.connection.creation.rate", I, INT32_MAX,
           "The most new connections a second, over the samples of quota.window.num; further ones "
           "are accepted and served later. Kafka takes 0, with which no client can connect.",
           at_least=1, dynamic=True),
    Config("connections.max.idle.ms", L, 600_000,
           "A connection without a request for so long is closed; -1: never.", at_least=-1),
    Config("connection.inflight.bytes", L, 8 * MIB,
           "Request bytes of one connection being worked on past which it is not read, and bytes "
           "of answers it has not taken past which no further request of it is started; one of "
           "any size is always taken.", at_least=1024),
    Config("inflight.bytes", L, 256 * MIB,
           "Request bytes of all connections being worked on past which none is read (Kafka: "
           "queued.max.request.bytes). An eighth is kept for requests up to 64 KiB, another for "
           "those up to 2 MiB.", at_least=MIB),
    Config("inflight.answer.bytes", L, 256 * MIB,
           "Bytes of answers of all connections that their clients have not taken yet. While "
           "little is free, Fetches of older records are answered with less, or wait.",
           at_least=MIB),
    Config("parked.fetches.max", I, 100_000,
           "Fetches that wait for records at a time; further ones are answered at once.",
           at_least=0),
    Config("max.incremental.fetch.session.cache.slots", I, 1000,
           "Clients whose list of partitions is kept between their Fetches (KIP-227); others list "
           "them in each. 0: none is kept.", at_least=0),
    Config("quota.window.num", I, 11,
           "Samples over which bytes and times are measured that quotas limit.", at_least=1),
    Config("quota.window.size.seconds", I, 1, "The length of such a sample.", at_least=1),
    Config("controller.quota.window.num", I, 11,
           "With the size below: for how many seconds unused partition changes of the quota "
           "controller_mutation_rate are saved up for a burst.", at_least=1),
    Config("controller.quota.window.size.seconds", I, 1,
           "The length of a sample of controller_mutation_rate.", at_least=1),
    Config("metrics.listener", S, "",
           "HOST:PORT where /metrics and /health are answered to monitors; empty: nowhere."),
    Config("telemetry.max.bytes", I, MIB,
           "The most bytes of metrics that a client pushes at a time (KIP-714), also when they are "
           "decompressed.", at_least=1),
    Config("metrics.tls", B, False,
           "Whether metrics.listener has TLS (https), with the certificate of "
           "ssl.keystore.location."),
    Config("metrics.token.file", S, "",
           "A file with the tokens of monitors, a line for each, read again when it has changed; "
           "only its owner may have access to it. /metrics is answered to requests that have one "
           "(Authorization: Bearer), /health without one gives the status only. Empty: no tokens."),
    # groups
    Config("group.initial.rebalance.delay.ms", I, 3000,
           "How long a new group waits for more members before its first rebalance.", at_least=0),
    Config("group.min.session.timeout.ms", I, 6000, "The shortest session timeout of a member.",
           at_least=0),
    Config("group.max.session.timeout.ms", I, 1_800_000, "The longest session timeout of a member.",
           at_least=0),
    Config("group.max.size", I, INT32_MAX, "The most members of one group.", at_least=1),
    *GROUP_BROKER_ROWS,
    *SHARE_BROKER_ROWS,
    *STREAMS_BROKER_ROWS,
    Config("offset.metadata.max.bytes", I, 4096,
           "The longest metadata string of a committed offset, in bytes.", at_least=0),
    Config("offsets.retention.minutes", I, 10_080,
           "How long the offsets of an empty group are kept.", at_least=1),
    Config("offsets.retention.check.interval.ms", L, 600_000,
           "Interval of the check for expired offsets.", at_least=1),
    Config("offsets.topic.num.partitions", I, 50,
           "Partitions of __consumer_offsets; not to be changed once it is there. Each is a log "
           "with a coordinator in memory.", at_least=1, at_most=10_000),
    Config("offsets.topic.replication.factor", ConfigType.SHORT, 1,
           "Replicas of __consumer_offsets: at most the number of brokers (Kafka's default is 3). "
           "The setting durability decides how many copies there are.",
           at_least=1),
    Config("offsets.topic.segment.bytes", I, 100 * MIB,
           "segment.bytes of __consumer_offsets, never below the least that topics may have.",
           at_least=1, effect=NO),
    Config("transaction.max.timeout.ms", I, 900_000,
           "The longest timeout of a transaction that a producer may ask for.", at_least=1),
    Config("transactional.id.expiration.ms", I, 7 * DAY_MS,
           "How long a transactional id without a transaction is kept.", at_least=1),
    Config("transaction.abort.timed.out.transaction.cleanup.interval.ms", I, 10_000,
           "Interval of the check for transactions past their timeout.", at_least=1),
    Config("transaction.remove.expired.transaction.cleanup.interval.ms", I, 3_600_000,
           "Interval of the check for expired transactional ids.", at_least=1),
    Config("transaction.two.phase.commit.enable", B, False,
           "Whether producers may take part in a two-phase commit; the version of InitProducerId "
           "that asks for it is not served.", effect=NO),
    Config("transaction.partition.verification.enable", B, True,
           "Whether the coordinator is asked, before the first batch of a transaction is appended "
           "to a partition, if the partition belongs to the transaction (clients before "
           "transaction.version 2).", dynamic=True),
    Config("add.partitions.to.txn.retry.backoff.ms", I, 20,
           "How long a Produce that adds a partition to a transaction waits before it asks the "
           "coordinator again, while the transaction before is being completed.", at_least=1),
    Config("add.partitions.to.txn.retry.backoff.max.ms", I, 100,
           "After this time the producer is answered CONCURRENT_TRANSACTIONS and asks again "
           "itself.", at_least=0),
    Config("transaction.state.log.num.partitions", I, 50,
           "Partitions of __transaction_state; not to be changed once it is there. Each is a log "
           "with a coordinator in memory.", at_least=1, at_most=10_000),
    Config("transaction.state.log.replication.factor", ConfigType.SHORT, 1,
           "Replicas of __transaction_state: at most the number of brokers (Kafka's default is 3). "
           "The setting durability decides how many copies there are.",
           at_least=1),
    Config("transaction.state.log.segment.bytes", I, 100 * MIB,
           "segment.bytes of __transaction_state, never below the least that topics may have.",
           at_least=1, effect=NO),
    Config("local.manifest.enable", B, True,
           "Whether the broker's folder says what is in its segments (docs/manifest-format.md), so "
           "that Spark can read them there without a broker."),
    Config("backup.url", S, "",
           "Where backups of metadata, offsets and groups are kept: s3://BUCKET/PREFIX or a "
           "folder, apart from data and tier; empty: none are made. Records are not in them."),
    Config("backup.interval.ms", L, DAY_MS, "From one backup to the next.",
           at_least=60_000, dynamic=True),
    Config("backup.keep", I, 7, "So many of the newest backups stay, older ones are deleted.",
           at_least=1, at_most=1_000, dynamic=True),
    *SASL_ROWS,
    *ACCESS_BROKER_ROWS,
    *TIER_BROKER_ROWS,
    *TLS_BROKER_ROWS,
)
# fmt: on


def _broker_side(row: Config) -> list[Config]:
    """The broker settings that give a topic setting its default."""
    if not row.broker_name:
        return []
    default = None if any(unit[2] is not None for unit in row.units) else row.default
    rows = [replace(row, name=row.broker_name, default=default, of_topic=True)]
    for name, unit_ms, unit_default in row.units:
        about = f"{row.broker_name} in units of {unit_ms} ms, where that is not set."
        rows.append(Config(name, I, unit_default, about, effect=row.effect, of_topic=True))
    return rows


TOPIC_CONFIGS: dict[str, Config] = {row.name: row for row in _TOPIC_ROWS}
BROKER_CONFIGS: dict[str, Config] = {
    row.name: row
    for row in (*_BROKER_ROWS, *(side for topic in _TOPIC_ROWS for side in _broker_side(topic)))
}
