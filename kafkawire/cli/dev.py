"""`kafkawire dev`: a broker to try out, with a console and topics that live.

The broker runs in this process, as that of `serve`; a thread is the producer and the consumer.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kafkawire.cli.serving.options import parse
from kafkawire.cli.serving.run import run
from kafkawire.cli.shared.parameters import LOCAL, not_empty
from kafkawire.client.admin import create_topic
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.offsets import Partition, leaders
from kafkawire.client.producer import append
from kafkawire.codec.batches import Record, pack
from kafkawire.codec.errors import ErrorCode
from kafkawire.codec.murmur2 import key_partition
from kafkawire.console.views.group_member import TopicMember
from kafkawire.log_lines import address_of

if TYPE_CHECKING:
    from kafkawire.broker.options import ServeOptions
    from kafkawire.server.run import Server

ORDERS, CUSTOMERS, GROUP = "orders", "customers", "billing"
PARTITIONS = 3
TOPICS = {
    ORDERS: (PARTITIONS, {"retention.ms": "86400000"}),
    CUSTOMERS: (1, {"cleanup.policy": "compact"}),
}
EVERY_S = 0.25
"""Between two orders of the producer."""
TICKS_OF_CUSTOMER, TICKS_OF_COMMIT = 8, 40
"""A customer changes every two seconds; the group commits every ten, so its lag is seen."""
GONE_S = 1.0
NAMES = ("Ada", "Blaise", "Chien-Shiung", "Dorothy", "Emmy", "Fazlur", "Grace", "Hedy")
GOODS = ("tea", "coffee", "cups", "spoons", "honey")


def dev(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", callback=not_empty, help="Address of the broker.")
    ] = LOCAL,
    console: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", callback=not_empty, help="Address of the console's pages."
        ),
    ] = "127.0.0.1:8080",
    data: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            callback=not_empty,
            help="Data folder, which is kept. [default: a temporary one]",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Start a broker to try out, with a console, topics with live records, and a group.

    The topic orders gets JSON, the compacted topic customers changes; the group billing reads
    orders with a lag. Ctrl-C stops all of it and deletes the temporary folder.

    Examples:
      kafkawire dev
      kafkawire dev --listen 127.0.0.1:19092 --console 127.0.0.1:18080
    """
    from kafkawire.server.run import ServeHooks, use_hooks

    folder = data or tempfile.mkdtemp(prefix="kafkawire-dev-")
    try:
        given = parse(
            [f"--listen={listen}", f"--console={console}", f"--data={folder}", "--log-level=error"]
        )
        assert given is not None  # it is for `--help` only
        use_hooks(ServeHooks(started=_start_traffic))
        raise SystemExit(run(given, {}))  # variables of the environment are those of other brokers
    finally:
        if not data:
            shutil.rmtree(folder, ignore_errors=True)


async def _start_traffic(server: Server, options: ServeOptions) -> None:
    """Start the producer and the consumer in a thread, which ends with the broker."""
    address = address_of(*server.broker.listeners[options.listeners[0].name])
    threading.Thread(target=SampleTraffic(address).run, name="kafkawire-dev", daemon=True).start()


class SampleTraffic:
    """A producer of orders and customers, and the only member of the group of consumers."""

    def __init__(self, address: str, seed: int = 0) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._orders = 0

    def run(self) -> None:
        """Write and read until the process ends."""
        announced = False
        while True:
            try:
                with Cluster(self._address) as cluster:
                    _create_topics(cluster)
                    member = TopicMember(cluster, GROUP, ORDERS)
                    if not announced:
                        print(hints(self._address), flush=True)
                        announced = True
                    self._live(cluster, member)
            except ClientError:  # the broker ends, or loads its coordinators
                time.sleep(GONE_S)

    def _live(self, cluster: Cluster, member: TopicMember) -> None:
        led_by = leaders(cluster, list(TOPICS))
        tick = 0
        while True:
            place, batch = self.order()
            append(cluster, led_by[place], {place: batch})
            if tick % TICKS_OF_CUSTOMER == 0:
                place, batch = self.customer()
                append(cluster, led_by[place], {place: batch})
            member.poll(0)
            if tick % TICKS_OF_COMMIT == 0:
                for index, offset in member.positions.items():
                    member.acknowledge(index, offset - 1)
            tick += 1
            time.sleep(EVERY_S)

    def order(self) -> tuple[Partition, bytes]:
        """Return the next order, as the partition and a batch."""
        self._orders += 1
        customer = self._random.randrange(len(NAMES))
        order = {
            "order": self._orders,
            "customer": customer,
            "item": self._random.choice(GOODS),
            "quantity": self._random.randint(1, 5),
            "price": round(self._random.uniform(1, 50), 2),
        }
        key = b"%d" % customer
        return (ORDERS, key_partition(key, PARTITIONS)), _batch(key, order)

    def customer(self) -> tuple[Partition, bytes]:
        """Return a change of a customer, as the partition and a batch."""
        number = self._random.randrange(len(NAMES))
        customer = {"name": NAMES[number], "points": self._random.randrange(1000)}
        return (CUSTOMERS, 0), _batch(b"%d" % number, customer)


def _batch(key: bytes, value: Mapping[str, Any]) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return bytes(pack([Record(0, now_ms, key, json.dumps(value).encode(), ())]))


def _create_topics(cluster: Cluster) -> None:
    for name, (partitions, settings) in TOPICS.items():
        try:
            create_topic(cluster, name, partitions, settings)
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:  # of a data folder that is kept
                raise


def hints(address: str) -> str:
    """Return the commands to try. Pure."""
    server = "" if address == LOCAL else f" --server {address}"
    return "\n".join(
        (
            "Try, in another terminal; Ctrl-C here stops all of it:",
            f"  kafkawire consume {ORDERS} --tail 5{server}",
            f"  kafkawire groups lag {GROUP}{server}",
            f"  kafkawire groups why {GROUP}{server}",
        )
    )
