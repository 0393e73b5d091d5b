"""What can be typed about Spark tables: `kafkawire pipeline ...`. Part of kafkawire.cli.app."""

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
        "--master", metavar="URL", help="spark://HOST:PORT, yarn, k8s://... [of the job, or local]"
    ),
]

# Further commands, each in a module of its own: audit, replay, query, report.
# One line each: from kafkawire.cli.pipeline_X import X, then pipeline_app.command("X")(X).


@pipeline_app.command("run")
def pipeline_run(
    job: JobFile,
    master: Master = "",
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on until it is stopped, whatever the job says.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write what is new in the topics to the job's table, each offset exactly once.

    A run that was interrupted is finished first; with --json there is a line of JSON for each run.
    Exit code 0: done, also by SIGINT or SIGTERM in
    continuous mode; 1: it failed and may be run again; 2: the job is wrong."""
    from kafkawire.cli.pipeline.run import run

    run(job, master, continuous, as_json)


@pipeline_app.command("compact")
def pipeline_compact(job: JobFile, master: Master = "", as_json: Json = False) -> None:
    """Merge the table's small neighbouring files. May be interrupted: the next one goes on."""
    from kafkawire.cli.pipeline.run import compact

    compact(job, master, as_json)


pipeline_app.command("audit")(audit)
pipeline_app.command("replay")(replay)
pipeline_app.command("query")(query)
pipeline_app.command("report")(report)
