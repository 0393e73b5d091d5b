"""The rows of the table of settings that are about log-ins by SASL, TLS, access rules and the audit
log; data only.

`sasl.plain.users.file`, `sasl.login.*`, `sasl.deleted.users.disconnect`,
`sasl.oauthbearer.required.scopes` and `inter.broker.client.config` are our own, the others Kafka's.
"""

from __future__ import annotations

from kafkawire.codec.configs.row import (
    DAY_MS,
    HOUR_MS,
    INT64_MAX,
    LIST,
    B,
    Config,
    ConfigType,
    I,
    L,
    S,
)

MAX_LIFETIME_MS = 100 * 365 * DAY_MS
"""A century: sums with the current time stay in 64 bits."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

# fmt: off
SASL_ROWS = (
    Config("sasl.enabled.mechanisms", LIST, ["SCRAM-SHA-256", "SCRAM-SHA-512"],
           "Mechanisms of listeners with SASL. Kafka's default is GSSAPI, which is not served.",
           choices=MECHANISMS),
    Config("sasl.plain.users.file", S, "",
           "A file with a line name:password for each user of PLAIN, read again when it has "
           "changed; only its owner may have access to it. Users of SCRAM log in with PLAIN, too.",
           ),
    Config("sasl.server.max.receive.size", I, 65_536,
           "The largest request of a client that is not logged in, in bytes; a token has a few "
           "thousand (Kafka: 524288).", at_least=1024, at_most=16 << 20),
    Config("connections.max.reauth.ms", L, 0,
           "How long a log-in is valid: a client that does not log in again in time is "
           "disconnected at its next request; 0: forever.", at_least=0, at_most=INT64_MAX),
    Config("connection.failed.authentication.delay.ms", I, 100,
           "How long the answer to a failed log-in is held back.", at_least=0, at_most=10_000),
    Config("sasl.login.timeout.ms", I, 30_000,
           "A client that has not logged in so long after it connected is disconnected; one that "
           "logs in again has as long.", at_least=1_000, at_most=600_000),
    Config("sasl.login.max.connections", I, 1_000,
           "The most connections that are not logged in; further ones are closed at once. Each may "
           "hold a request of sasl.server.max.receive.size.", at_least=1, at_most=1_000_000),
    Config("sasl.login.max.connections.per.ip", I, 100,
           "The same from one address.", at_least=1, at_most=1_000_000),
    Config("sasl.deleted.users.disconnect", B, False,
           "Whether connections of a user whose last SCRAM credential is deleted are closed at "
           "once. Otherwise they stay until they have to log in again, as in Kafka."),
    Config("sasl.oauthbearer.jwks.endpoint.url", S, "",
           "The keys of the issuer of tokens: an https:// URL without a password, or a file.",
           url=True),
    Config("sasl.oauthbearer.jwks.endpoint.refresh.ms", L, HOUR_MS,
           "How long these keys are used before they are read again. A token with an unknown key "
           "has them read at once, at most every 10 s.", at_least=10_000),
    Config("sasl.oauthbearer.expected.audience", LIST, [],
           "Audiences of which a token must name one; empty: any token of the issuer is accepted.",
           ),
    Config("sasl.oauthbearer.expected.issuer", S, "",
           "The issuer that a token must name; empty: any, signed with one of the keys."),
    Config("sasl.oauthbearer.required.scopes", LIST, [],
           "Scopes that a token must have; empty: none."),
    Config("sasl.oauthbearer.scope.claim.name", S, "scope", "The claim with a token's scopes."),
    Config("sasl.oauthbearer.sub.claim.name", S, "sub", "The claim with the name of the user."),
    Config("inter.broker.listener.name", S, "",
           "The listener of other brokers that this one connects to, and its own for backups; "
           "empty: the first."),
    Config("inter.broker.client.config", S, "",
           "A file with the settings of a client (kafkawire --command-config), with which this "
           "broker connects to other brokers, and for backups to itself; empty: no log-in, no "
           "encryption."),
    Config("sasl.oauthbearer.clock.skew.seconds", I, 30,
           "How far the clocks of issuer and broker may differ.", at_least=0, at_most=3_600),
    Config("delegation.token.secret.key", ConfigType.PASSWORD, "",
           "The key with which delegation tokens are made, the same for all brokers of a cluster; "
           "empty: there are none. Not on the command line, which other users of the machine can "
           "see: in the environment or the TOML file."),
    Config("delegation.token.max.lifetime.ms", L, 7 * DAY_MS,
           "How long a delegation token can be renewed.", at_least=1, at_most=MAX_LIFETIME_MS),
    Config("delegation.token.expiry.time.ms", L, DAY_MS,
           "How long a delegation token is valid until it must be renewed.", at_least=1,
           at_most=MAX_LIFETIME_MS),
    Config("delegation.token.expiry.check.interval.ms", L, HOUR_MS,
           "How often expired delegation tokens are deleted.", at_least=1, at_most=MAX_LIFETIME_MS),
)


PROTOCOLS = ("TLSv1.2", "TLSv1.3")

# fmt: off
TLS_BROKER_ROWS = (
    Config("plaintext.allowed.addresses", S, "",
           "Addresses and networks (10.0.0.0/8), with commas between them, that may connect to "
           "PLAINTEXT listeners, besides this machine; empty: all. With it they may be on "
           "addresses that others can reach."),
    Config("ssl.keystore.location", S, "",
           "PEM file with the certificate of this broker and those between it and its authority, "
           "and with the private key unless ssl.key.location has it. Read again when it changes."),
    Config("ssl.key.location", S, "",
           "PEM file with the private key, without a password; empty: it is in "
           "ssl.keystore.location. Read again when it changes."),
    Config("ssl.truststore.location", S, "",
           "PEM file with the certificates of the authorities that sign those of clients "
           "(ssl.client.auth) and of other brokers. Read again when it changes."),
    Config("ssl.keystore.type", S, "PEM", "The format of ssl.keystore.location.",
           choices=("PEM",)),
    Config("ssl.truststore.type", S, "PEM", "The format of ssl.truststore.location.",
           choices=("PEM",)),
    Config("ssl.client.auth", S, "none",
           "Whether clients of TLS listeners show a certificate. requested: one without a "
           "certificate is User:ANONYMOUS. Clients of SASL_TLS listeners are asked only if it is "
           "set for the listener (listener.name.NAME.ssl.client.auth).",
           choices=("none", "requested", "required")),
    Config("ssl.enabled.protocols", LIST, ["TLSv1.2", "TLSv1.3"],
           "The versions of TLS that clients may use.", choices=PROTOCOLS),
    Config("ssl.principal.mapping.rules", S, "DEFAULT",
           "How the subject of a client's certificate becomes the name of its principal: DEFAULT, "
           "the whole subject, or RULE:pattern/replacement/[LU], of which the first that matches "
           "is used."),
)


STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

# fmt: off
ACCESS_BROKER_ROWS = (
    Config("authorizer", S, "none",
           "Whether access rules (ACLs) are enforced. none: every client may do everything; acl: "
           "only what a rule or super.users allows (docs/security.md).", choices=("none", "acl")),
    Config("authorizer.class.name", S, "",
           "Kafka's name of the same: its StandardAuthorizer stands for authorizer=acl.",
           choices=("", STANDARD_AUTHORIZER)),
    Config("super.users", S, "",
           "Principals that may do everything, separated by semicolons: User:admin;User:CN=ops. "
           "The brokers of a cluster need this (or the rule ClusterAction) for each other."),
    Config("allow.everyone.if.no.acl.found", B, False,
           "Whether a resource about which there is no rule is open to all. The first rule "
           "about it, for any principal, closes it for all others."),
    Config("audit.log", S, "",
           "Where the audit log goes: a file (lines of JSON are appended), `log` for the broker's "
           "own log, or empty for nowhere."),
)
# fmt: on
