"""Rows of the table of settings about access rules and the audit log."""

from __future__ import annotations

from kafkawire.codec.configs.row import B, Config, S

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
