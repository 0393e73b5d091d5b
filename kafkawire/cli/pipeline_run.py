"""`kafkawire pipeline run|compact`: a job's file, a Spark session, what to say of it.

Called by kafkawire.cli.pipeline_app; the work is kafkawire.spark.pipeline's.
"""

from __future__ import annotations

from kafkawire.cli.tables import fail
from kafkawire.spark.model import SourceError
from kafkawire.spark.pipeline.job import Job, parse


def read_job(path: str) -> Job:
    """The job of a TOML file; ends the command with exit code 2 if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except OSError as error:
        fail(f"{path}: {error.strerror}", 2)
    except (SourceError, UnicodeDecodeError) as error:
        fail(f"{path}: {error}", 2)


def run(path: str, master: str, continuous: bool, as_json: bool) -> None:
    read_job(path)


def compact(path: str, master: str, as_json: bool) -> None:
    read_job(path)
