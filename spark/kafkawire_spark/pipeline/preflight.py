"""Checks before Spark is started: of a job's table, catalog, source, topics and schemas, or of a
source.

Starting Spark takes ten seconds; a mistake in the job is reported sooner. The checks read what a
run reads first, and change nothing.
"""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kafkawire.client.address import parse_servers
from kafkawire.client.connection import reach
from kafkawire.client.errors import ClientError
from kafkawire.reading.catalog import SourceCatalog, open_catalog
from kafkawire.reading.files.broker_queries import BOOTSTRAP
from kafkawire.reading.files.locations import Place
from kafkawire.reading.files.open import open_place
from kafkawire.reading.model.source import Source, Unreachable
from kafkawire_spark.pipeline import planning
from kafkawire_spark.pipeline.dead_letters import open_dead_letters
from kafkawire_spark.pipeline.jobs.job import ICEBERG, Job
from kafkawire_spark.pipeline.jobs.section import JobError
from kafkawire_spark.pipeline.jobs.state import Positions, TableState
from kafkawire_spark.pipeline.tables.ownership import check_owner
from kafkawire_spark.pipeline.tables.port import Table, open_table
from kafkawire_spark.pipeline.values.spec import JSON, Format

_PORTS = {"http": 80, "https": 443}


def check_job(job: Job) -> None:
    """Raise SourceError, in one sentence, if the job cannot run: Unreachable if it may later,
    DataLoss for a topic that was read before and does not exist any more."""
    source = job.reading.source
    reach_source(source)
    table = check_table(job)
    state = TableState(table.place)
    last = table.read_last_run()
    catalog = open_catalog(source)
    try:
        begun = state.run(last + 1)  # is finished first, as it was planned
        if begun is not None:
            _check_columns(job, table, begun.value, begun.key)
            return
        known = _read_last_positions(state, last)
        keys = planning.partitions(catalog, job.reading, known, ())
        topics = _with_records(catalog, job, keys, known if last else None)
    finally:
        catalog.close()
    value, key = (_resolve_format(job, topics, key=key) for key in (False, True))
    if value is not None and key is not None:
        _check_columns(job, table, value, key)


def check_source(source: Source) -> None:
    """Raise SourceError, in one sentence, if a source cannot be read: Unreachable if its broker
    may be reached later."""
    reach_source(source)
    open_catalog(source).close()


def reach_source(source: Source) -> None:
    """Connect to the brokers and the bucket of a source. Raises Unreachable, SourceError."""
    # Unreachable is an error of its own: the job may be right, so a batch can be run again and a
    # continuous job waits.
    if source.bootstrap:
        _reach_brokers(source.bootstrap)
    if source.url:
        reach_store(open_place(source.url))


def check_table(job: Job) -> Table:
    """Return the job's table, whose catalog was reached. Raises Unreachable; JobError
    if the table is another job's or no job's; PlaceError for an invalid URL."""
    if job.table.format == ICEBERG:
        _reach_catalog(job)
    table = open_table(job)
    reach_store(table.place)
    if job.dead_letters:
        reach_store(open_dead_letters(job.dead_letters))
    check_owner(table, job)
    return table


def _read_last_positions(state: TableState, last: int) -> Positions:
    if not last:
        return {}
    # A run without a record is committed, but its driver was killed before the run ended.
    found = state.read_record(last) or state.run(last)
    return found.ends if found is not None else {}


def _with_records(
    catalog: SourceCatalog, job: Job, keys: list[planning.Key], known: Positions | None
) -> list[str]:
    """Return the topics that have records to read: the schemas of an empty topic may come with its
    first producer."""
    begin = planning.starts(catalog, job.reading, keys, known)
    return sorted({key[0] for key in keys if catalog.bounds(*key).end > begin[key]})


def _resolve_format(job: Job, topics: list[str], *, key: bool) -> Format | None:
    """Return the format of values or keys with its schema; None for one that the registry may not
    have yet, as nothing was written. Raises SourceError."""
    from kafkawire_spark.pipeline.values.converters import resolve

    form = job.key if key else job.value
    if form.registry and not topics:
        return None
    _reach_url("the schema registry", form.registry)
    return resolve(form, topics, key=key)


def _check_columns(job: Job, table: Table, value: Format, key: Format) -> None:
    """Check the columns that resolved formats make, and that the table can have them; a schema that
    only Spark can parse is left to it. Raises SourceError."""
    from kafkawire_spark.pipeline.converting import converter_of, layout_of
    from kafkawire_spark.pipeline.values.json import needs_spark

    value, key = value.with_login_of(job.value), key.with_login_of(job.key)
    if any(form.format == JSON and needs_spark(form.schema) for form in (value, key)):
        return
    layout = layout_of(job, converter_of(key, key=True), converter_of(value, key=False))
    check_owner(table, job, layout)


def _reach_brokers(bootstrap: str) -> None:
    """Connect to one of the brokers. Raises Unreachable."""
    try:
        reach(parse_servers(BOOTSTRAP, bootstrap))
    except ClientError as wrong:
        raise JobError(f"[source] bootstrap: {wrong}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unreachable(f"cannot connect to the broker at {bootstrap}: {reason}") from None


def reach_store(place: Place) -> None:
    """Connect to a bucket's endpoint, if it is not AWS's: requests are repeated for a while. Raises
    Unreachable, PlaceError."""
    access = place.access()
    if access is not None:
        _reach_url("the object store", access.endpoint)


def _reach_catalog(job: Job) -> None:
    """Connect to a REST catalog. Raises Unreachable."""
    from kafkawire_spark.pipeline.tables.iceberg_catalog import replace_variables

    _reach_url(
        "the Iceberg catalog", str(replace_variables(job.table.catalog or {}).get("uri", ""))
    )


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
        reach([(parts.hostname, port)])
    except OSError as error:
        reason = error.strerror or str(error)
        raise Unreachable(
            f"cannot connect to {what} at {parts.hostname}:{port}: {reason}"
        ) from None
