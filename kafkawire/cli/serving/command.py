"""The options of `kafkawire serve`; kafkawire.cli.main parses the plain form without typer."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from kafkawire.cli.serving.run import Given, run

Listen = Annotated[
    list[str],
    typer.Option(
        metavar="[PROTOCOL://]HOST:PORT",
        help="Address to listen on; may be repeated. Protocols: PLAINTEXT (the default), TLS, "
        "SASL_PLAINTEXT, SASL_TLS; NAME=PROTOCOL:// names the listener.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Allow PLAINTEXT listeners that other machines can connect to.",
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="N", help="Number of processes that serve, each on a core of its own. [default: 1]"
    ),
]
WorkerPorts = Annotated[
    list[str],
    typer.Option(
        metavar="[NAME://]PORTS",
        help="Ports of the workers' own addresses: 9093-9096 or 9093,9095. "
        "[default: those after the port of --listen]",
    ),
]
Worker = Annotated[
    str | None, typer.Option(hidden=True, help="Of a worker: what the supervisor gave it.")
]


def serve(
    listen: Listen = [],  # noqa: B006  (typer copies it)
    advertise: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME://]HOST:PORT", help="Address returned to clients of listener NAME."
        ),
    ] = [],  # noqa: B006
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Data folder. [default: kafkawire-data]")
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Metadata database. [default: SQLite in the data folder]"),
    ] = None,
    tier: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Remote tier: s3://BUCKET/PREFIX or a folder. [default: none]"
        ),
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Broker setting (see docs/configs.md); may be repeated.",
        ),
    ] = [],  # noqa: B006
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Configuration file in TOML.")
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="debug, info, warning or error. [default: info]"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text or json. [default: text]")
    ] = None,
    insecure: Insecure = False,
    workers: Workers = None,
    worker_ports: WorkerPorts = [],  # noqa: B006
    worker: Worker = None,
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config", help="Print each setting, its value and its source, then exit."
        ),
    ] = False,
) -> None:
    """Start a broker.

    Values come from the command line, the environment (KAFKAWIRE_LISTEN, KAFKAWIRE_DATA, ...,
    KAFKAWIRE_SET_NUM_PARTITIONS), the TOML file or the default, in this order of precedence.

    Examples:
      kafkawire serve --data /var/lib/kafkawire --listen 0.0.0.0:9092 --insecure
      kafkawire serve --tier s3://BUCKET/PREFIX --set num.partitions=4
      kafkawire serve --workers 4
      kafkawire serve --show-config
    """
    options: dict[str, list[str]] = {"listen": listen, "advertise": advertise}
    options["worker-ports"] = worker_ports
    once = {"data": data, "metadata": metadata, "tier": tier, "workers": workers}
    once |= {"log-level": log_level, "log-format": log_format}
    options |= {name: [value] for name, value in once.items() if value is not None}
    options |= {"insecure": ["true"]} if insecure else {}
    options = {name: values for name, values in options.items() if values}
    raise SystemExit(run(Given(options, settings, config, show_config, worker), os.environ))
