"""The settings as docs/configs.md documents them, and values that it does not allow.

Users rely on the page, so it is the trial's only source: what it allows must work, what it does not
allow must be refused. Pure, except for reading the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "configs.md"
WRONG = 20
"""Wrong values of each setting."""
NUMBERS = ("short", "int", "long", "double")
LIMITS = {"short": 2**15, "int": 2**31, "long": 2**63}
ANY_TEXT = "a text"
ANY = (ANY_TEXT, "a list")

NO_NUMBER = (
    "abc", "", "1 2", "--1", "+-1", "1,2", "null", "true", "1k", "10XB", "0x10", "1_000", "'5'",
    "5;", "1/2", "None", "five", "%d", "${x}", "\u0663", "\uff11\uff12", "1\n2",
    "[1]", "-", "+", "1-",
)  # fmt: skip
NO_WHOLE = ("1.5", "1e3", "NaN", "Infinity", "0.", ".5", "1.0", "9" * 30, "-" + "9" * 30)
NO_DOUBLE = ("NaN", "Infinity", "-Infinity", "1e999", "1e", ".", "1..2", "1.5.2", "½", "5%")
NO_BOOLEAN = (
    "yes", "no", "1", "0", "on", "off", "t", "f", "truee", "", "TRUE FALSE", "null", "-1", "2",
    "tru", "enabled", "y", "n", "true,false", "fals e", "[true]", "'true'",
)  # fmt: skip
NO_CHOICE = (
    "x", "null", "-1", "true?", "*", "${x}", "../x", "ä", "x" * 1000, "%s", "[]", "{}", ";", "=",
    "a b", "\\", "0x0", "None", "?", "choice", "any", "\t.",
)  # fmt: skip
NO_PAIRS = (
    "x", "1", "1:", "a:b", ":1", "*,1:2", "1-2", "1:2:3", "**", "null", "1:2;3:4", "0:x", "x:0",
    "1.0:2", "one:two", "{}", "::", "1::2", "[1:2]", "1:2 3:4", "-", "1:+",
)  # fmt: skip
TEXTS: dict[str, tuple[str, ...]] = {
    "broker.rack": (),
    "cluster.name": tuple("x" * size for size in range(101, 131)),
    "metrics.listener": (
        "x", "1", ":", "host:", "host:x", "host:-1", "host:65536", "host:99999", "h:1:2:3", "[::1",
        "http://h:1/x", "127.0.0.1", "a b:1 2", "h:1.5", "h:0x10", "h:1e3", "h: ", "://:1",
        "h:\u0663x", "[]:x",
    ),
    "replication.listener": (
        "x", "1", ":", "host:", "host:x", "host:-1", "host:65536", "host:99999", "h:1:2:3", "[::1",
        "http://h:1/x", "127.0.0.1", "a b:1 2", "h:1.5", "h:0x10", "h:1e3", "h: ", "h:0", "A://h:1",
        "h:\u0663x", "[]:x",
    ),
    "replication.advertised.listener": (
        "x", "1", ":", "host:", "host:x", "host:-1", "host:65536", "host:99999", "h:1:2:3", "[::1",
        "http://h:1/x", "127.0.0.1", "a b:1 2", "h:1.5", "h:0x10", "h: ", "h:0", "A://h:1", ":1",
        "0.0.0.0:1", "[::]:1",
    ),
    "tier.url": (
        "ftp://x", "s3://", "s3:///prefix", "http://h/b", "gs://b/p", "s3:", "S4://b", "file:",
        "://", "s3:x", "azure://x", "hdfs://n/p", "s3://B_A_D!/p", "rocksdb:///x", "mysql://h/d",
        "s3://a", "x://y", "ssh://h/f", "abfs://c/p", "tcp://h:1",
    ),
    "backup.url": (
        "ftp://x", "s3://", "s3:///prefix", "http://h/b", "gs://b/p", "s3:", "S4://b", "s3://a",
        "azure://x", "hdfs://n/p", "s3://B_A_D!/p", "rocksdb:///x", "mysql://h/d", "x://y",
        "ssh://h/f", "abfs://c/p", "tcp://h:1", "smb://h/x", "nfs://h/x", "s3:x",
    ),
    "offset.storage": NO_CHOICE,
    "plugin.hooks": NO_CHOICE,
    "tier.prices": (
        "x", "aws", "=", "put=", "put=x", "=1", "put=-1", "put=1;get=2", "unknown=1", "put=1,,get",
        "put=NaN", "put==1", "put=1e999", "free beer", "0", "-1", "null", "{}", "put:1", "*",
    ),
    "max.connections.per.ip.overrides": (
        "x", "1", "1.2.3.4", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:-1", ":5", "1.2.3:5", "1.2.3.4.5:1",
        "host:1", "localhost:1", "1.2.3.4=1", "256.1.1.1:1", "1.2.3.4:1.5", "1.2.3.4:1;5.6.7.8:1",
        "{}", "*:1", "1.2.3.0/24:5", "1.2.3.4:1e3", "1.2.3.4 1",
    ),
    "super.users": (
        "x", "admin", "a,b", "User", "User;", "User=x", "admin;User:x", "User:x;admin", "*", "-1",
        "CN=ops", "null", "{}", "%s", "user", "x y", "=", "../x", "User:a;b;User:c", "1",
    ),
    "plaintext.allowed.addresses": (
        "x", ":", "1.2.3", "1.2.3.4/33", "localhost", "1.2.3.4-5", "1.2.3.4;5", "*", "any",
        "::1/129", "10.0.0.0/x", "1.2.3.4:80", "[::1]", "256.0.0.1", "10.0.0.0 /8 x", "null", "{}",
        "1.2.3.4.5", "10.0.0.0/-1", "${x}",
    ),
    "schedule.target.topic": (
        "a b", "*", "ä", "x/y", "..", ".", "x" * 250, "%s", "{}", "[1]", "a:b", "a;b", "a,b",
        "${x}", "a@b", "a+b", "(x)", "x\\y", "?", "a=b",
    ),
    "errors.deadletterqueue.topic.name.prefix": (),
    "group.streams.rack.aware.assignment.tags": (),
    "schedule.target.header": (),
    # Checked by tests/codec/test_view_filter.py and tests/handlers/test_views.py: they need a topic
    # that is created as a view.
    "view.filter": (),
    "view.source.topic": (),
    # Used, and checked, with a listener of their kind or with --workers.
    "audit.log": (),
    "cluster.takeover.ports": (),
    "delegation.token.secret.key": (),
    "inter.broker.client.config": (),
    "inter.broker.listener.name": (),
    "metrics.token.file": (),
    "sasl.oauthbearer.expected.audience": (),
    "sasl.oauthbearer.expected.issuer": (),
    "sasl.oauthbearer.jwks.endpoint.url": (),
    "sasl.oauthbearer.required.scopes": (),
    "sasl.oauthbearer.scope.claim.name": (),
    "sasl.oauthbearer.sub.claim.name": (),
    "sasl.plain.users.file": (),
    "ssl.key.location": (),
    "ssl.keystore.location": (),
    "ssl.principal.mapping.rules": (),
    "ssl.truststore.location": (),
}  # fmt: skip
"""Wrong values of settings that are free text; one that is not listed here fails the trial."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the page. `topic`: a setting of topics; `broker_names`: its defaults' names."""

    name: str
    kind: str
    default: str
    allowed: str
    dynamic: bool
    topic: bool
    broker_names: tuple[str, ...] = ()

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The minimum and maximum; None where the setting is not a number."""
        if self.kind not in NUMBERS:
            return None
        number = r"(-?[0-9.]+)"
        if found := re.search(f"from {number} to {number}", self.allowed):
            low, high = found[1], found[2]
        elif found := re.search(f"at least {number}", self.allowed):
            low, high = found[1], ""
        else:
            raise ValueError(f"{self.name}: no bounds in {self.allowed!r}")
        if self.kind == "double":
            return float(low), float(high or "1e308")
        return int(low), int(high) if high else LIMITS[self.kind] - 1

    @property
    def choices(self) -> list[str]:
        """The allowed words; empty where the setting is something else."""
        if self.kind not in ("string", "list") or self.allowed in ANY:
            return []
        words = re.sub(r"^a list of ", "", self.allowed)
        return ["" if w == "empty" else w for w in re.split(r", | or | and ", words)]

    def wrong(self) -> list[str]:
        """At least WRONG values that the page does not allow, the most revealing ones first."""
        if self.kind == "boolean":
            return list(NO_BOOLEAN)
        if self.bounds is not None:
            return self._wrong_numbers(*self.bounds)
        if self.allowed in ANY:
            return list(TEXTS[self.name])
        if "PARTITION:BROKER" in self.allowed:
            return list(NO_PAIRS)
        whole = [word for word in self.choices if word]
        two = (whole * 2)[:2]
        odd = [whole[0][:-1], whole[0] + "x", " ".join(two), "|".join(two)]
        if self.kind == "string":
            odd.append(",".join(two))
        return [*odd, *NO_CHOICE]

    def _wrong_numbers(self, low: float, high: float) -> list[str]:
        values = list(NO_NUMBER)
        if self.kind == "double":
            return [*values, *NO_DOUBLE, *([f"{low - 0.5}"] if low >= 0 else [])]
        also = re.search(r", or (-?\d+)", self.allowed)
        ends = [number for number in (int(low) - 1, int(high) + 1)]
        outside = [str(n) for n in ends if also is None or n != int(also[1])]
        return [*outside, *values, *NO_WHOLE]

    def extremes(self) -> list[str]:
        """Allowed values at the limits of the range."""
        if self.kind == "boolean":
            return ["true", "false"]
        if self.bounds is not None:
            low, high = self.bounds
            return [f"{low:.17g}", f"{high:.17g}"] if self.kind == "double" else [
                str(low), str(high),
            ]  # fmt: skip
        return self.choices


def read_page(text: str | None = None) -> list[Setting]:
    """All settings of brokers and topics on the page. Those of groups have tests of their own
    (tests/handlers/test_group_configs.py)."""
    found, section = [], ""
    for line in (PAGE.read_text() if text is None else text).splitlines():
        if line.startswith("## "):
            section = line
        if not line.startswith("| `") or section == "## Group":
            continue
        topic = section == "## Topic"
        name, kind, default, allowed, dynamic, _, about = (
            cell.strip() for cell in line.strip("|").split(" | ", 6)
        )
        brokers = re.findall(r"`([^`]+)`", about.partition("Broker: ")[2]) if topic else []
        found.append(
            Setting(
                name.strip("`"), kind, default.strip("`"), allowed, dynamic == "yes", topic,
                tuple(brokers),
            )
        )  # fmt: skip
    return found
