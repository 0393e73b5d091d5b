"""Cost of 10,000 access rules for a Produce, compared with no authorizer.

    python -m bench.micro.acls [--rounds 7] [--seconds 1] [--rules 10000]

Two brokers on one core, one of them with `authorizer=acl` and the rules; the load client, on the
other core, measures them in alternation: one request in flight on a connection, and 16 connections
with five each, which is the path of repeated requests.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench import client
from bench.admin import Admin
from bench.client import Job, JobResult
from bench.report import number, show
from bench.server import Recipe, Server, kafkawire
from kafkawire.messages.create_acls import AclCreation, CreateAclsRequest
from tests.kit.client import Client

TOPIC, GROUP, LITERAL, PREFIXED, WRITE, ALLOW, DENY = 2, 3, 3, 4, 4, 3, 2
RULES_AT_ONCE = 1000
LOADS: dict[str, dict[str, int | str]] = {
    "1 in flight": {"connections": 1, "inflight": 1},
    "16 connections, 5 in flight": {"connections": 16, "inflight": 5},
}


def with_rules() -> Recipe:
    """This broker with access rules. Its clients are not super users."""
    plain = kafkawire()

    def command(port: int, folder: Path) -> list[str]:
        return [*plain.command(port, folder), "--set", "authorizer=acl",
                "--set", "allow.everyone.if.no.acl.found=true"]  # fmt: skip

    return replace(plain, name="acl", command=command)


def rules(count: int) -> list[AclCreation]:
    """One that allows the load, and others of all kinds, for other principals and topics."""
    made = [AclCreation(TOPIC, "acls", LITERAL, "User:ANONYMOUS", "*", WRITE, ALLOW)]
    for at in range(count - 1):
        name, pattern = f"topic-{at}", LITERAL
        if at % 10 == 0:
            name, pattern = f"a{at}", PREFIXED
        elif at % 100 == 1:
            name = "acls"
        allowed = DENY if at % 7 == 0 else ALLOW
        principal = f"User:user-{at}"
        made.append(AclCreation(TOPIC, name, pattern, principal, "*", WRITE, allowed))
    return made


async def add(port: int, made: Sequence[AclCreation]) -> None:
    """Add the rules."""
    connection = await Client.connect(port)
    for at in range(0, len(made), RULES_AT_ONCE):
        answer = await connection.call(CreateAclsRequest(list(made[at : at + RULES_AT_ONCE])), 3)
        assert not any(row.error_code for row in answer.results)
    await connection.close()


def run(server: Server, load: str, seconds: float) -> JobResult:
    """One window."""
    options: dict[str, int | float | str] = {
        "port": server.port, "server_pid": server.pid, "client_core": 1, "warmup": 0.3,
        "seconds": seconds,
    }  # fmt: skip
    (found,) = client.run([Job("produce", {**LOADS[load], "topic": "acls"})], options)
    assert not found.error, found.error
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rules", type=int, default=10_000)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        servers = []
        for recipe in (kafkawire(), with_rules()):
            server = Server(recipe, folder / recipe.name, {0})
            stack.callback(server.discard)
            server.start()
            with Admin(server.port) as admin:
                admin.create_topic("acls")
            servers.append(server)
        plain, guarded = servers
        asyncio.run(add(guarded.port, rules(given.rules)))
        rows = []
        for load in LOADS:
            pairs = []
            for round_number in range(given.rounds + 1):
                pair = run(plain, load, given.seconds), run(guarded, load, given.seconds)
                if round_number:  # the first one warms
                    pairs.append(pair)
            ratios = [after.cpu_us / before.cpu_us for before, after in pairs]
            costs = [[one.cpu_us for one in each] for each in zip(*pairs, strict=True)]
            medians = [number(statistics.median(each)) for each in costs]
            least = [number(min(each)) for each in costs]
            rows.append([load, *medians, *least, number(statistics.median(ratios))])
        head = ("", "none us", "acl us", "none least", "acl least", "ratio")
        show(f"CPU of a Produce with {given.rules:,} rules", head, rows)


if __name__ == "__main__":
    main()
