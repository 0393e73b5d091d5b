"""Options of the commands about Spark tables: `kafkawire pipeline ...`. Part of
kafkawire.cli.app."""

from __future__ import annotations

from typing import Annotated

import typer

from kafkawire.cli.parameters import Json
from kafkawire.cli.pipeline.audit import audit
from kafkawire.cli.pipeline.query import query
from kafkawire.cli.pipeline.replay import replay
from kafkawire.cli.pipeline.report import report

pipeline_app = typer.Typer(
    no_args_is_help=True,
    help="Topics as tables, on Spark: run, compact, audit, replay, query, report.",
)

JobFile = Annotated[str, typer.Argument(metavar="JOB.toml")]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        help="spark://HOST:PORT, yarn, k8s://... [default: from the job, or local]",
    ),
]


@pipeline_app.command("run")
def pipeline_run(
    job: JobFile,
    master: Master = "",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Run until stopped, whatever the job file says.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write new records of the topics to the table of the job, each offset exactly once.

    An interrupted run is finished first. With --json each run prints one line of JSON. Exit code 0:
    done, or stopped by SIGINT or SIGTERM in continuous mode; 1: failed and can be retried; 2: the
    job file is invalid."""
    from kafkawire.cli.pipeline.run import run

    run(job, master, continuous, as_json)


@pipeline_app.command("compact")
def pipeline_compact(job: JobFile, master: Master = "", as_json: Json = False) -> None:
    """Merge small adjacent files of the table. If interrupted, the next run continues."""
    from kafkawire.cli.pipeline.run import compact

    compact(job, master, as_json)


pipeline_app.command("audit")(audit)
pipeline_app.command("replay")(replay)
pipeline_app.command("query")(query)
pipeline_app.command("report")(report)
