"""`python -m kafkawire.spark.pipeline JOB.toml`, for spark-submit: one job with plain text output.
The command `kafkawire pipeline run` shows progress bars and tables."""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    """Exit code 0: done; 1: it failed and may be run again; 2: the job is invalid."""
    if len(arguments) != 1:
        print("usage: python -m kafkawire.spark.pipeline JOB.toml", file=sys.stderr)
        return 2
    from kafkawire.progress import silent
    from kafkawire.spark.model.source import DataLoss, SourceError
    from kafkawire.spark.pipeline.engine import RunOutcome
    from kafkawire.spark.pipeline.jobs.job import CONTINUOUS
    from kafkawire.spark.pipeline.preflight import Unreachable, check_job
    from kafkawire.spark.pipeline.submitted import read_job, run_batch, run_continuous
    from kafkawire.spark.pipeline.summary import sentence

    try:
        job = read_job(arguments[0])
        check_job(job)
    except SourceError as problem:
        print(f"kafkawire: {problem}", file=sys.stderr)
        if not isinstance(problem, Unreachable):
            return 1 if isinstance(problem, DataLoss) else 2
        if job.running.mode != CONTINUOUS:
            return 1

    def report(outcome: RunOutcome) -> None:
        print(sentence(outcome), flush=True)

    def failed(problem: SourceError, wait_s: float) -> None:
        print(f"kafkawire: {problem}; retrying in {wait_s:.0f} s", file=sys.stderr)

    try:
        if job.running.mode == CONTINUOUS:
            run_continuous(job, "", report, failed)
        else:
            run_batch(job, "", silent, report)  # Spark shows its own progress
    except SourceError as problem:
        print(f"kafkawire: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
