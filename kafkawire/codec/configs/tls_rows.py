"""The rows of the table of settings that are about TLS; data only.

The names are Kafka's, whose stores may be PEM files, too; `ssl.key.location` is librdkafka's.
"""

from __future__ import annotations

from kafkawire.codec.configs.row import LIST, Config, S

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
