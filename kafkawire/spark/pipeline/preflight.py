"""Checks before Spark is started: of a job's table, catalog, source, topics and schemas, or of a
source.

Starting Spark takes ten seconds; a mistake in the job is reported sooner. The checks read what a
run reads first, and change nothing. An address that cannot be reached is reported at once, with an
error of its own: the job may be right, so a batch can be run again and a continuous job waits.
"""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kafkawire.client.address import parse_servers
from kafkawire.client.connection import connect
from kafkawire.client.errors import ClientError
from kafkawire.spark.brokers.queries import BOOTSTRAP
from kafkawire.spark.model.source import Source, SourceError
from kafkawire.spark.pipeline import planning
from kafkawire.spark.pipeline.dead_letters import open_dead_letters
from kafkawire.spark.pipeline.jobs.job import ICEBERG, Job
from kafkawire.spark.pipeline.jobs.runs import Positions
from kafkawire.spark.pipeline.jobs.section import JobError
from kafkawire.spark.pipeline.jobs.state import TableState
from kafkawire.spark.pipeline.tables.ownership import own
from kafkawire.spark.pipeline.tables.port import Table, open_table
from kafkawire.spark.source.catalog import SourceCatalog, open_catalog

CONNECTS_WITHIN_S = 1.5
"""Limit for all addresses of a service together: a round trip to another continent is 0.3 s."""
_PORTS = {"http": 80, "https": 443}


class Unreachable(SourceError):
    """A broker or a catalog that does not accept connections now."""


def check_job(job: Job) -> None:
    """Raise SourceError, in one sentence, if the job cannot run: Unreachable if it may later,
    DataLoss for a topic that was read before and does not exist any more."""
    source = job.reading.source
    if source.bootstrap:
        _reach_brokers(source.bootstrap)
    table = check_table(job)
    state = TableState(table.place)
    last = table.committed()
    catalog = open_catalog(source)
    try:
        if state.run(last + 1) is None:  # else that run is finished first, as it was planned
            known = _known(state, last)
            keys = planning.partitions(catalog, job.reading, known, ())
            _check_formats(job, _with_records(catalog, job, keys, known if last else None))
    finally:
        catalog.close()


def check_source(source: Source) -> None:
    """Raise SourceError, in one sentence, if a source cannot be read: Unreachable if its broker
    may be reached later."""
    if source.bootstrap:
        _reach_brokers(source.bootstrap)
    open_catalog(source).close()


def check_table(job: Job) -> Table:
    """Return the job's table, whose catalog was reached. Raises Unreachable, SourceError, JobError
    if the table is another job's, PlaceError if the URL of the dead letters is invalid."""
    if job.table.format == ICEBERG:
        _reach_catalog(job)
    table = open_table(job)
    own(TableState(table.place), job, None)
    if job.dead_letters:
        open_dead_letters(job.dead_letters)
    return table


def _known(state: TableState, last: int) -> Positions:
    """Return where the last run ended."""
    if not last:
        return {}
    # A run without a record is committed, but its driver was killed before the run ended.
    found = state.record(last) or state.run(last)
    return found.ends if found is not None else {}


def _with_records(
    catalog: SourceCatalog, job: Job, keys: list[planning.Key], known: Positions | None
) -> list[str]:
    """Return the topics that have records to read: the schemas of an empty topic may come with its
    first producer."""
    begin = planning.starts(catalog, job.reading, keys, known)
    return sorted({key[0] for key in keys if catalog.bounds(*key).end > begin[key]})


def _check_formats(job: Job, topics: list[str]) -> None:
    """Read the schemas of values and keys, and check that they can be columns; those of JSON are
    checked by Spark. Raises Unreachable, SourceError."""
    if not topics:
        return
    from kafkawire.spark.pipeline.converting import converter_of
    from kafkawire.spark.pipeline.values.converters import resolve
    from kafkawire.spark.pipeline.values.registry import RegistryUnavailable
    from kafkawire.spark.pipeline.values.spec import JSON

    for form, key in ((job.value, False), (job.key, True)):
        try:
            _reach_url("the schema registry", form.registry)
            resolved = resolve(form, topics, key=key)
            if form.format != JSON:
                converter_of(resolved, key=key)
        except RegistryUnavailable as error:
            raise Unreachable(str(error)) from None


def _reach_brokers(bootstrap: str) -> None:
    """Connect to one of the brokers. Raises Unreachable."""
    try:
        _reach(parse_servers(BOOTSTRAP, bootstrap))
    except ClientError as wrong:
        raise JobError(f"[source] bootstrap: {wrong}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unreachable(f"cannot connect to the broker at {bootstrap}: {reason}") from None


def _reach_catalog(job: Job) -> None:
    """Connect to a REST catalog. Raises Unreachable."""
    from kafkawire.spark.pipeline.tables.iceberg_catalog import resolved

    _reach_url("the Iceberg catalog", str(resolved(job.table.catalog or {}).get("uri", "")))


def _reach_url(what: str, url: str) -> None:
    """Connect to the host of an HTTP URL; another one is not checked. Raises Unreachable."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        raise JobError(f"the address of {what} is not a URL") from None
    if parts.scheme not in _PORTS or not parts.hostname or not port:
        return  # none, or of a catalog a database, or one of pyiceberg's configuration
    if parts.scheme in getproxies() and not proxy_bypass(parts.hostname):
        return
    try:
        _reach([(parts.hostname, port)])
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unreachable(
            f"cannot connect to {what} at {parts.hostname}:{port}: {reason}"
        ) from None


def _reach(addresses: list[tuple[str, int]]) -> None:
    """Connect to the first address that accepts a connection. Raises the OSError of the last."""
    for at, address in enumerate(addresses):
        try:
            connect(*address, CONNECTS_WITHIN_S / len(addresses)).close()
            return
        except OSError:
            if at == len(addresses) - 1:
                raise
