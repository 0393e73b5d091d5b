"""`kafkawire topics`: list, describe, create, delete, against any Kafka broker.

Each function is one command; it ends with exit code 1 if any topic failed.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, error_text, print_results, report
from kafkawire.cli.shared.output import fail, print_json
from kafkawire.cli.shared.parameters import INT16, INT32, LOCAL, Json, Server, Topics, Wide
from kafkawire.cli.shared.tables import TableColumn, print_table
from kafkawire.client.admin import delete_topics as delete_named_topics
from kafkawire.client.admin import topic_settings
from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check
from kafkawire.client.notation import OptionError, split_setting
from kafkawire.client.offsets import EARLIEST, LATEST, list_offsets
from kafkawire.codec.types import uuid_text
from kafkawire.plural import count

PARTITIONS = (
    "partition",
    TableColumn("leader", wrong=lambda node: node < 0),
    "log_start",
    "log_end",
    "epoch",
    "replicas",
    "isr",
)


def list_topics(
    server: Server = LOCAL,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """List topics with their number of partitions.

    Examples:
      kafkawire topics list
      kafkawire topics list --internal --json
    """

    with connect_cluster(server) as cluster:
        rows = [
            {
                "topic": topic.name,
                "id": uuid_text(topic.topic_id),
                "partitions": len(topic.partitions),
                "internal": topic.is_internal,
            }
            for topic in sorted(cluster.metadata(None).topics, key=lambda topic: topic.name)
            if internal or not topic.is_internal
        ]
        columns = ("topic", "partitions", "internal", "id")
        print_results(rows, columns, count(len(rows), "topic"), as_json, wide)


def describe_topics(
    names: Topics, server: Server = LOCAL, as_json: Json = False, wide: Wide = False
) -> None:
    """Show partitions, leaders, offsets and topic-level settings.

    Examples:
      kafkawire topics describe orders
      kafkawire topics describe orders clicks --json
    """

    with connect_cluster(server) as cluster:
        described = [_describe(cluster, topic) for topic in cluster.metadata(names).topics]
        if as_json:
            print_json(described)
            return
        for topic in described:
            settings = "".join(f", {name}={value}" for name, value in topic["configs"].items())
            title = f"{topic['topic']} ({topic['id']}){settings}"
            print_table(topic["partitions"], PARTITIONS, title, wide)


def _describe(cluster: Cluster, topic: Any) -> dict[str, Any]:
    check(f"topic {topic.name}", topic.error_code)
    led_by = {(topic.name, row.partition_index): row.leader_id for row in topic.partitions}
    earliest = list_offsets(cluster, dict.fromkeys(led_by, EARLIEST), led_by)
    latest = list_offsets(cluster, dict.fromkeys(led_by, LATEST), led_by)
    rows = [
        {
            "partition": row.partition_index,
            "leader": row.leader_id,
            "epoch": row.leader_epoch,
            "replicas": row.replica_nodes,
            "isr": row.isr_nodes,
            "log_start": earliest.get((topic.name, row.partition_index)),
            "log_end": latest.get((topic.name, row.partition_index)),
        }
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    ]
    return {
        "topic": topic.name,
        "id": uuid_text(topic.topic_id),
        "internal": topic.is_internal,
        "configs": topic_settings(cluster, topic.name),
        "partitions": rows,
    }


def create_topics(
    names: Topics,
    partitions: Annotated[
        int,
        typer.Option(
            min=-1, max=INT32, help="Number of partitions; -1: the broker's num.partitions."
        ),
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(min=-1, max=INT16, help="Number of replicas; -1: the broker's default.")
    ] = -1,
    settings: Annotated[
        list[str],
        typer.Option("--config", metavar="NAME=VALUE", help="Topic setting; may be repeated."),
    ] = [],  # noqa: B006
    server: Server = LOCAL,
    as_json: Json = False,
) -> None:
    """Create topics.

    Examples:
      kafkawire topics create orders --partitions 6
      kafkawire topics create clicks --config retention.ms=1d
    """
    from kafkawire.messages.create_topics import (
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )

    try:
        pairs = [split_setting("--config", text) for text in settings]
    except OptionError as error:
        fail(error, 2)

    with connect_cluster(server) as cluster:
        configs = [CreatableTopicConfig(name, value) for name, value in pairs]
        topics = [
            CreatableTopic(name, partitions, replication_factor, [], configs) for name in names
        ]
        answer = cluster.request(19, CreateTopicsRequest(topics=topics))
        rows = [
            {
                "topic": topic.name,
                "id": uuid_text(topic.topic_id),
                # -1 without the right to describe its settings
                "partitions": None if topic.num_partitions < 0 else topic.num_partitions,
                "error": error_text(topic.error_code, topic.error_message),
            }
            for topic in answer.topics
        ]
        report("created", rows, ("topic", "partitions", "id"), as_json)


def delete_topics(names: Topics, server: Server = LOCAL, as_json: Json = False) -> None:
    """Delete topics and all their records.

    Examples:
      kafkawire topics delete orders
    """
    with connect_cluster(server) as cluster:
        results = delete_named_topics(cluster, names)
        rows = [{"topic": name, "error": error_text(*result)} for name, result in results.items()]
        report("deleted", rows, ("topic",), as_json)
