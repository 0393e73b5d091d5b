"""Broker settings of Apache Kafka that this broker does not have: names, types and bounds.

Kafka's admin API accepts a change of a dynamic setting or of an unknown name and refuses one of a
static setting. Tools rely on both, so this broker answers alike: a dynamic setting that it does
not have is checked, stored and shown, and has no effect. The names are those of Apache Kafka 4.3
(`AbstractKafkaConfig.CONFIG_DEF`, `DynamicBrokerConfig.dynamicConfigUpdateModes`).

Data, and look-ups by name; called by `kafkawire.broker.overrides` and `resources`.
"""

from __future__ import annotations

import re

from kafkawire.codec.configs.row import LIST, NO, B, Config, ConfigType, D, I, L, S

MAX_FOREIGN_CONFIGS = 1_000
"""Settings without effect that one resource may have: Kafka has about 360 in all, and each is kept
in memory and in SQL."""

_LISTENER_CONFIG = re.compile(r"listener\.name\.[^.]*\.(.*)")
_ABOUT = "A setting of Apache Kafka that has no effect here."


def _rows(kind: ConfigType, names: str, at_least: int | None = None) -> dict[str, Config]:
    return {
        name: Config(name, kind, None, _ABOUT, at_least=at_least, dynamic=True, effect=NO)
        for name in names.split()
    }


# fmt: off
_CLUSTER_WIDE: dict[str, Config] = {
    **_rows(I, """
        background.threads num.io.threads num.network.threads num.recovery.threads.per.data.dir
        num.replica.fetchers remote.log.manager.copier.thread.pool.size
        remote.log.manager.expiration.thread.pool.size
        remote.log.manager.follower.thread.pool.size remote.log.reader.threads
    """, 1),
    **_rows(LIST, """
        config.providers metric.reporters
    """),
    **_rows(B, """
        follower.fetch.last.tiered.offset.enable
    """),
    **_rows(I, """
        group.coordinator.cached.buffer.max.bytes share.coordinator.cached.buffer.max.bytes
    """, 524_288),
    **_rows(L, """
        remote.log.index.file.cache.total.size.bytes
    """, 1),
    **_rows(L, """
        follower.replication.throttled.rate leader.replication.throttled.rate
        replica.alter.log.dirs.io.max.bytes.per.second
    """, 0),
}
"""Dynamic settings of one broker or of all."""

_PER_BROKER: dict[str, Config] = {
    **_rows(ConfigType.CLASS, """
        principal.builder.class ssl.engine.factory.class
    """),
    **_rows(LIST, """
        sasl.kerberos.principal.to.local.rules ssl.cipher.suites ssl.enabled.protocols
    """),
    **_rows(ConfigType.PASSWORD, """
        sasl.jaas.config ssl.key.password ssl.keystore.certificate.chain ssl.keystore.key
        ssl.keystore.password ssl.truststore.certificates ssl.truststore.password
    """),
    **_rows(S, """
        sasl.kerberos.kinit.cmd sasl.kerberos.service.name sasl.mechanism.inter.broker.protocol
        ssl.client.auth ssl.endpoint.identification.algorithm ssl.keymanager.algorithm
        ssl.keystore.location ssl.keystore.type ssl.protocol ssl.provider
        ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.location
        ssl.truststore.type
    """),
    **_rows(L, """
        sasl.kerberos.min.time.before.relogin
    """),
    **_rows(D, """
        sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
        sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    """),
    **_rows(ConfigType.SHORT, """
        sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    """),
}
"""Dynamic settings of one broker, never of all."""

_PER_LISTENER = """
    ssl.key.password ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
    ssl.keystore.password ssl.keystore.type ssl.truststore.certificates ssl.truststore.location
    ssl.truststore.password ssl.truststore.type
"""
PER_LISTENER = frozenset(_PER_LISTENER.split())
"""Dynamic settings that are given as listener.name.NAME.SETTING only."""

_STATIC = """
    advertised.listeners alter.config.policy.class.name
    alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds
    auto.leader.rebalance.enable broker.heartbeat.interval.ms broker.id broker.session.timeout.ms
    client.quota.callback.class
    controlled.shutdown.enable controller.listener.names
    controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable
    controller.quorum.bootstrap.servers controller.quorum.election.backoff.max.ms
    controller.quorum.election.timeout.ms controller.quorum.fetch.max.bytes
    controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms
    controller.quorum.voters
    controller.socket.timeout.ms cordoned.log.dirs create.topic.policy.class.name
    delete.records.purgatory.purge.interval.requests early.start.listeners
    fetch.purgatory.purge.interval.requests group.coordinator.append.linger.ms
    group.coordinator.background.threads group.coordinator.rebalance.protocols
    group.coordinator.threads
    group.share.persister.class.name
    initial.broker.registration.timeout.ms
    internal.metadata.delete.delay.millis
    internal.metadata.log.segment.bytes internal.metadata.max.batch.size.in.bytes
    kafka.metrics.polling.interval.secs kafka.metrics.reporters
    leader.imbalance.check.interval.seconds listener.security.protocol.map listeners log.dir
    log.dir.failure.timeout.ms log.dirs log.flush.scheduler.interval.ms
    log.flush.start.offset.checkpoint.interval.ms log.initial.task.delay.ms
    metadata.log.dir
    metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms
    metadata.log.segment.bytes metadata.log.segment.ms metadata.max.idle.interval.ms
    metadata.max.retention.bytes metadata.max.retention.ms metrics.num.samples
    metrics.recording.level metrics.sample.window.ms num.replica.alter.log.dirs.threads
    offsets.commit.timeout.ms offsets.load.buffer.size offsets.topic.compression.codec
    process.roles producer.purgatory.purge.interval.requests queued.max.request.bytes
    queued.max.requests
    remote.log.index.file.cache.ttl.ms remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.task.interval.ms
    remote.log.manager.task.retry.backoff.max.ms remote.log.manager.task.retry.backoff.ms
    remote.log.manager.task.retry.jitter remote.log.manager.thread.pool.size
    remote.log.metadata.custom.metadata.max.bytes remote.log.metadata.manager.class.name
    remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix
    remote.log.metadata.manager.listener.name remote.log.reader.max.pending.tasks
    remote.log.storage.manager.class.name remote.log.storage.manager.class.path
    remote.log.storage.manager.impl.prefix remote.log.storage.system.enable
    replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes
    replica.fetch.response.max.bytes replica.fetch.wait.max.ms
    replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms
    replica.socket.receive.buffer.bytes replica.socket.timeout.ms replication.quota.window.num
    replication.quota.window.size.seconds request.timeout.ms sasl.client.callback.handler.class
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
    sasl.login.read.timeout.ms sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.mechanism.controller.protocol sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id
    sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url sasl.server.callback.handler.class
    security.inter.broker.protocol security.providers
    server.max.startup.time.ms share.coordinator.append.linger.ms
    share.coordinator.load.buffer.size
    share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
    share.coordinator.threads share.coordinator.write.timeout.ms
    share.fetch.purgatory.purge.interval.requests socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms socket.receive.buffer.bytes socket.send.buffer.bytes
    ssl.allow.dn.changes ssl.allow.san.changes ssl.principal.mapping.rules
    transaction.state.log.load.buffer.size transaction.state.log.min.isr
    unclean.leader.election.interval.ms
    unstable.api.versions.enable unstable.feature.versions.enable
"""
STATIC = frozenset(_STATIC.split())
"""Settings that a running broker does not change. Kafka can change `listeners`,
`listener.security.protocol.map` and `cordoned.log.dirs`; the listeners and the data folder of this
broker are fixed at its start."""
# fmt: on


def foreign_row(name: str) -> Config:
    """Return the row of a setting that this broker does not have; for an unknown one a row that
    accepts any text. A setting with the prefix of a listener is that setting."""
    prefixed = _LISTENER_CONFIG.fullmatch(name)
    base = prefixed.group(1) if prefixed else name
    known = _CLUSTER_WIDE.get(base) or _PER_BROKER.get(base)
    kind = ConfigType.UNKNOWN if known is None else known.type
    at_least = None if known is None else known.at_least
    return Config(name, kind, None, _ABOUT, at_least=at_least, dynamic=True, effect=NO)


def per_broker(name: str) -> bool:
    """Return True if Kafka refuses the setting as a cluster-wide default."""
    return name in _PER_BROKER or _LISTENER_CONFIG.fullmatch(name) is not None
