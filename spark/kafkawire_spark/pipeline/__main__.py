"""`python -m kafkawire_spark.pipeline JOB.toml`, for spark-submit: one job with plain text output.
The command `kafkawire pipeline run` shows progress bars and tables."""

from __future__ import annotations

import sys


def main(arguments: list[str]) -> int:
    """Exit code 0: done; 1: it failed and may be run again; 2: the job is invalid."""
    if len(arguments) != 1:
        print("usage: python -m kafkawire_spark.pipeline JOB.toml", file=sys.stderr)
        return 2
    from kafkawire.progress import silent
    from kafkawire.reading.model.source import SourceError, Unreachable, exit_code
    from kafkawire_spark.pipeline.engine import RunOutcome
    from kafkawire_spark.pipeline.jobs.job import CONTINUOUS
    from kafkawire_spark.pipeline.preflight import check_job
    from kafkawire_spark.pipeline.submitted import read_job, run_batch, run_continuous, sentence

    try:
        job = read_job(arguments[0])
        check_job(job)
    except SourceError as problem:
        print(f"kafkawire: {problem}", file=sys.stderr)
        if not isinstance(problem, Unreachable) or job.running.mode != CONTINUOUS:
            return exit_code(problem, started=False)

    def report(outcome: RunOutcome) -> None:
        print(sentence(outcome), flush=True)

    def on_failure(problem: SourceError, wait_s: float) -> None:
        print(f"kafkawire: {problem}; retrying in {wait_s:.0f} s", file=sys.stderr)

    try:
        if job.running.mode == CONTINUOUS:
            run_continuous(job, "", report, on_failure)
        else:
            run_batch(job, "", silent, report)  # Spark shows its own progress
    except SourceError as problem:
        print(f"kafkawire: {problem}", file=sys.stderr)
        return exit_code(problem, started=True)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
