"""`python -m bench.micro.following`: how long until other brokers see a change of the catalog.

Starts `--brokers` brokers on one SQLite file, or on the database `--metadata`. Each change is made
at one of them in turn: a topic is created, changed or deleted. The time from the answer to the
change until each other broker lists it is measured with Metadata of all topics, which does not ask
SQL. Prints median, p99 and the longest, and the CPU time of a broker while nothing changes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from kafkawire.client.connection import ClientConnection
from kafkawire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from kafkawire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from kafkawire.messages.metadata import MetadataRequest
from kafkawire.testing.process import BrokerProcess

CREATE, DELETE, METADATA = 19, 20, 3
POLL_S = 0.001
IDLE_S = 10.0


def topics_of(connection: ClientConnection) -> set[str]:
    """The topics that a broker lists."""
    found = connection.request(METADATA, MetadataRequest(topics=None))
    return {topic.name for topic in found.topics}


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def delays(connections: list[ClientConnection], changes: int) -> list[float]:
    """Make changes; return the seconds until each other broker has seen each of them."""
    found: list[float] = []
    for number in range(changes):
        source, name = connections[number % len(connections)], f"topic-{number // 2}"
        created = number % 2 == 0
        if created:
            source.request(CREATE, CreateTopicsRequest(topics=[CreatableTopic(name, 1, 1)]))
        else:
            state = DeleteTopicState(name=name)
            source.request(DELETE, DeleteTopicsRequest(topics=[state], topic_names=[name]))
        began = time.perf_counter()

        def wait(other: ClientConnection, began: float, name: str, created: bool) -> None:
            while (name in topics_of(other)) != created:
                time.sleep(POLL_S)
            found.append(time.perf_counter() - began)

        threads = [
            threading.Thread(target=wait, args=(other, began, name, created))
            for other in connections
            if other is not source
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument(
        "--metadata", default="", help="URL of the database; default: an SQLite file"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = args.metadata or f"sqlite:///{folder}/metadata.db"
        brokers = [
            BrokerProcess(
                Path(folder, f"data-{node}"),
                settings={"node.id": node},
                arguments=["--metadata", url],
            )
            for node in range(1, args.brokers + 1)
        ]
        try:
            for broker in brokers:
                broker.start()
            connections = [ClientConnection("127.0.0.1", broker.port) for broker in brokers]
            time.sleep(2.0)  # the first broker polls once a second until it sees another
            found = delays(connections, args.changes)
            before = cpu_s(brokers[0].pid)
            time.sleep(IDLE_S)
            idle = (cpu_s(brokers[0].pid) - before) / IDLE_S
        finally:
            for broker in brokers:
                broker.stop()
    p99 = found[int(len(found) * 0.99)]
    print(
        f"{args.changes} changes seen by the other {args.brokers - 1} brokers:"
        f" p50 {statistics.median(found) * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms,"
        f" most {found[-1] * 1000:.0f} ms; idle {idle:.2%} of a core"
    )


if __name__ == "__main__":
    main()
