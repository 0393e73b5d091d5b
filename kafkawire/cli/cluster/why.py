"""`kafkawire cluster why`: what each broker does, or waits for, in sentences."""

from __future__ import annotations

from kafkawire.cli.shared.outcomes import connect_cluster
from kafkawire.cli.shared.output import print_json
from kafkawire.cli.shared.parameters import LOCAL, Json, Server, Wide
from kafkawire.cli.shared.tables import print_table
from kafkawire.client.cluster_causes import BrokerCause, causes, observe_cluster

COLUMNS = ("broker", "stuck", "cause", "sentence")


def why(server: Server = LOCAL, as_json: Json = False, wide: Wide = False) -> None:
    """Explain for each broker what it serves, and why partitions are not served or not moved.

    Checks which brokers are alive, which are drained, and the moves that have not ended, as the
    broker that is asked knows them. Exit code 0 whatever it finds.

    Examples:
      kafkawire cluster why
    """
    with connect_cluster(server) as cluster:
        rows = [_row(cause) for cause in causes(observe_cluster(cluster))]
    if as_json:
        print_json(rows)
    else:
        shown = [{**row, "stuck": "yes" if row["stuck"] else ""} for row in rows]
        print_table(shown, COLUMNS, "brokers", wide)


def _row(cause: BrokerCause) -> dict[str, object]:
    return {
        "broker": cause.broker,
        "cause": cause.kind,
        "stuck": cause.stuck,
        "sentence": cause.sentence,
    }
