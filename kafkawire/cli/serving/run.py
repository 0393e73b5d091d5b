"""`kafkawire serve`: settings from their sources to ServeOptions, then the server.

Also `--show-config`. The server itself (kafkawire.server.run) is imported only after all values are
validated, so that errors are reported quickly.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kafkawire import log_format
from kafkawire.broker.options import (
    Listener,
    SecurityProtocol,
    ServeOptions,
    WorkerRole,
    is_loopback,
)
from kafkawire.cli.serving.options import Given, parse
from kafkawire.cli.serving.sources import PREFIX, Sourced, Sources, collect, read_file
from kafkawire.cli.shared.options import WILDCARDS, parse_address, parse_advertised, parse_listeners
from kafkawire.cli.shared.output import fail, without_password
from kafkawire.cli.shared.paths import (
    check_data_folder,
    check_metadata_url,
    check_tier_apart,
    check_tier_folder,
)
from kafkawire.client.notation import OptionError, split_pair
from kafkawire.codec.configs.listeners import check_listeners
from kafkawire.codec.configs.settings import (
    BROKER_CONFIGS,
    BrokerConfig,
    ConfigError,
    ConfigType,
    text_of,
)
from kafkawire.extras import MissingExtra, need
from kafkawire.log_lines import address_of
from kafkawire.plugins import HOOKS, OFFSET_STORAGES, has_plugin, installed_words
from kafkawire.supervisor.plan import PlanError, plans_of
from kafkawire.supervisor.shares import divide_settings

# The options of `kafkawire serve --workers N`: what is refused, what a worker gets.
#
# Imported only if there are workers.


class WorkersError(OptionError):
    """Workers that cannot be with these options: one sentence."""

    def __init__(self, sentence: str) -> None:
        ValueError.__init__(self, sentence)


def check_workers(options: ServeOptions) -> None:
    """Raise OptionError unless there can be so many workers with these options."""
    storage = BrokerConfig(options.settings).offset_storage
    if storage != "sql":
        raise OptionError(
            "offset.storage", storage, f"sql with --workers {options.workers}: the workers read "
            "each other's segments, whose rows must be in a database of all",
        )  # fmt: skip
    try:
        plans_of(options)
    except PlanError as wrong:
        raise WorkersError(str(wrong)) from None


def for_worker(options: ServeOptions, text: str) -> ServeOptions:
    """Return the options of one worker: its share of the machine, its own ports. OptionError."""
    role = WorkerRole.parse(text)
    if role is None or len(role.sockets) != len(options.listeners):
        raise OptionError("worker", text, "what the supervisor of --workers gives its workers")
    ports = [each.port for each in role.sockets]
    advertised = {
        each.name: (options.advertised[each.name][0], port)
        for each, port in zip(options.listeners, ports, strict=True)
    }
    settings = {"node.id": "1", **divide_settings(options.settings, role.workers)}
    return replace(options, advertised=advertised, settings=settings, worker=role)


def serve_options(sources: Sources, worker: str | None = None) -> ServeOptions:
    """Return the options of the server from the collected sources; `worker`: the role of a worker,
    which has its share of them. OptionError."""
    listeners = parse_listeners(sources.options["listen"].values)
    check_listeners(sources.texts()[1], [each.name for each in listeners])
    _check_reachable(sources, listeners)
    _check_tier(sources)
    _check_backups(sources)
    _check_monitors(sources)
    _check_replication(sources)
    check_data_folder("data", sources.options["data"].text)
    check_metadata_url("metadata", sources.options["metadata"].text)
    _check_storage(sources)
    _check_hooks(sources)
    _check_extras(sources)
    settings, own = sources.texts()  # the checks have normalized some
    options = ServeOptions(
        listeners=listeners,
        advertised=parse_advertised(sources.options["advertise"].values, listeners),
        data=os.path.abspath(sources.options["data"].text),
        metadata_url=sources.options["metadata"].text,
        settings=settings,
        listener_settings=own,
        log_level=sources.options["log-level"].text.lower(),
        log_format=sources.options["log-format"].text.lower(),
        workers=int(sources.options["workers"].text),
        worker_ports=sources.options["worker-ports"].values,
        console=sources.options["console"].text if worker is None else "",
    )
    _check_console(options)
    takes_over = _is_clustered(settings)
    if options.workers == 1 and not (options.worker_ports or takes_over) and worker is None:
        return options
    if sources.options["workers"].source == "default" and not takes_over and worker is None:
        ports = sources.options["worker-ports"].text
        raise OptionError("worker-ports", ports, "given together with --workers")
    from kafkawire.cli.serving.run import check_workers, for_worker  # most brokers do without

    check_workers(options)
    return options if worker is None else for_worker(options, worker)


def _check_reachable(sources: Sources, listeners: Sequence[Listener]) -> None:
    """Refuse PLAINTEXT listeners that other machines can connect to, unless that is intended."""
    allowed = sources.settings.get("plaintext.allowed.addresses")
    if allowed and allowed.text.strip():
        from kafkawire.server.listener import networks_of

        try:
            networks_of(allowed.text)
        except ValueError as error:
            fail(error, 2)
    if sources.options["insecure"].text.lower() == "true" or (allowed and allowed.text.strip()):
        return
    for each in listeners:
        if each.protocol is SecurityProtocol.PLAINTEXT and not is_loopback(each.host):
            raise OptionError(
                "listen",
                address_of(each.host, each.port),
                "an address of this machine only (127.0.0.1), or encrypted (TLS://, SASL_TLS://: "
                "docs/security.md), or permitted with --insecure or the networks in "
                "plaintext.allowed.addresses: any client that connects may do everything",
            )


def _check_monitors(sources: Sources) -> None:
    """Return the address of the listener for /metrics, or None."""
    given = sources.settings.get("metrics.listener")
    if given is not None and given.text.strip():
        name, _, _ = parse_address("metrics.listener", given.text)
        if name is not None:
            raise OptionError("metrics.listener", given.text, "HOST:PORT without a name")


def _check_replication(sources: Sources) -> None:
    """Check the addresses of the follower of this machine: where it listens, and where other
    machines' brokers reach it."""
    for setting in ("replication.listener", "replication.advertised.listener"):
        given = sources.settings.get(setting)
        if given is None or not given.text.strip():
            continue
        name, host, port = parse_address(setting, given.text)
        if name is not None or not port:
            raise OptionError(setting, given.text, "HOST:PORT with a port that stays the same")
        if setting != "replication.listener" and host in WILDCARDS:
            raise OptionError(setting, given.text, "HOST:PORT that other machines can connect to")


def _check_console(options: ServeOptions) -> None:
    """Check the address of the console, and that it can connect to the broker."""
    if not options.console:
        return
    from kafkawire.server.console_process import listener_of
    from kafkawire.server.listeners.addresses import AddressError

    need("console", "--console")
    name, host, _ = parse_address("console", options.console)
    if name is not None or not is_loopback(host):
        raise OptionError(
            "console", options.console,
            "HOST:PORT of the loopback interface, such as 127.0.0.1:8080, because the console has "
            "no log-in",
        )  # fmt: skip
    try:
        listener_of(options)
    except AddressError as error:
        fail(error, 2)


def _check_tier(sources: Sources) -> None:
    """Check the tier's settings beyond the table of settings: its URL and its price file."""
    tier, prices = (sources.settings.get(name) for name in ("tier.url", "tier.prices"))
    if tier is not None and tier.text.strip():
        from kafkawire.objectstore.url import parse_tier

        try:
            parsed = parse_tier(tier.text.strip())
        except ValueError as error:
            raise ConfigError("tier.url", None, f"{error} ({tier.source})") from None
        check_tier_folder("tier.url", parsed)
        check_tier_apart("tier.url", parsed.url, sources.options["data"].text)
        sources.settings["tier.url"] = Sourced((parsed.url,), tier.source)
    if prices is not None:
        from kafkawire.tiering.cost.prices import parse_prices

        try:
            parse_prices(prices.text)
        except ValueError as error:
            raise ConfigError("tier.prices", None, f"{error} ({prices.source})") from None


def _check_backups(sources: Sources) -> None:
    """Check that backups are outside of the data folder and the tier, whose orphans a scrub
    deletes."""
    given, tier = (sources.settings.get(name) for name in ("backup.url", "tier.url"))
    if given is None or not given.text.strip():
        return
    from kafkawire.objectstore.overlap import overlap
    from kafkawire.objectstore.url import parse_tier

    try:
        url = parse_tier(given.text.strip(), what="backup location").url
    except ValueError as error:
        raise ConfigError("backup.url", None, f"{error} ({given.source})") from None
    check_tier_apart("backup.url", url, sources.options["data"].text)
    if tier is not None and tier.text.strip() and overlap(url, tier.text.strip()):
        raise OptionError("backup.url", url, "outside tier.url, and must not contain it")
    sources.settings["backup.url"] = Sourced((url,), given.source)


def _check_storage(sources: Sources) -> None:
    """Check that offset.storage is known; the broker loads the plug-in."""
    from kafkawire.offsets.storage.open import BUILT_IN, is_storage_name

    kind = _setting(sources, "offset.storage") or BUILT_IN[0]
    if kind in BUILT_IN or (is_storage_name(kind) and has_plugin(OFFSET_STORAGES, kind)):
        return
    raise OptionError(
        "offset.storage", kind,
        f"sql, rocksdb, memory or a plug-in: {installed_words(OFFSET_STORAGES)}",
    )  # fmt: skip


def _check_hooks(sources: Sources) -> None:
    """Check that the plug-ins of plugin.hooks are installed; the broker loads them."""
    given = sources.settings.get("plugin.hooks")
    for name in filter(None, map(str.strip, "" if given is None else given.text.split(","))):
        if not has_plugin(HOOKS, name):
            raise OptionError("plugin.hooks", name, f"a plug-in: {installed_words(HOOKS)}")


def _check_extras(sources: Sources) -> None:
    """Raise MissingExtra if a chosen feature needs a package that is not installed."""
    if sources.options["metadata"].text.startswith("postgresql"):
        need("postgres", "--metadata postgresql://")
    for name in ("tier.url", "backup.url"):
        if _setting(sources, name).startswith("s3:"):
            need("s3", name)
    encrypted = _setting(sources, "replication.security.protocol").upper() == "SSL"
    if encrypted and _setting(sources, "replication.listener"):
        need("certs", "replication.security.protocol=SSL")
    if _setting(sources, "offset.storage") == "rocksdb":
        need("rocksdb", "offset.storage=rocksdb")
    if "OAUTHBEARER" in _setting(sources, "sasl.enabled.mechanisms").upper():
        need("oauth", "sasl.enabled.mechanisms=OAUTHBEARER")


def _setting(sources: Sources, name: str) -> str:
    given = sources.settings.get(name)
    return "" if given is None else given.text.strip()


def start(words: Sequence[str]) -> int | None:
    """Run the command line after `serve`; return the exit code, or None if it asks for help."""
    given = parse(words)
    return None if given is None else run(given, os.environ)


def run(given: Given, environ: Mapping[str, str]) -> int:
    """Serve until stopped by a signal, or print the settings; return the exit code."""
    try:
        sources = read(given, environ)
        chosen = serve_options(sources, given.worker)
    except (OptionError, ConfigError, MissingExtra) as error:
        fail(error, 2)
    if given.show_config:
        try:
            show(sources)
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has closed the pipe
            sys.stderr.close()
        return 0
    for sentence in notes(chosen, sources) if chosen.worker is None else ():
        print(f"kafkawire: {sentence}", file=sys.stderr)
    node = None if chosen.worker is None else int(chosen.settings["node.id"])
    log_format.setup(chosen.log_level, chosen.log_format, node)
    if has_workers(chosen, sources):
        from kafkawire.supervisor.run import supervise

        return supervise(chosen, given.words())
    # objects created from here on exist as long as the broker, which enables the collector
    gc.disable()
    from kafkawire.server.reload import ConfigFile
    from kafkawire.server.run import serve

    # The collection at the end of the start reads what the start has made, not modules and classes,
    # which would take a tenth of it. A frozen class that dataclass(slots=True) replaced is kept.
    gc.freeze()
    path = given.config or environ.get(PREFIX + "CONFIG")
    return serve(
        chosen,
        lambda: serve_options(read(given, environ), given.worker),
        ConfigFile(path, lambda: read_file(path)) if path else None,
    )


def has_workers(chosen: ServeOptions, sources: Sources) -> bool:
    """Return whether this process is the supervisor of workers. One worker, too, has a supervisor
    if the data folder has more brokers, if its port is given, or if it is to start brokers of other
    machines."""
    if chosen.worker is not None:
        return False
    if _is_clustered(chosen.settings):
        return True
    if sources.options["workers"].source == "default":
        return False
    if chosen.workers > 1 or chosen.worker_ports:
        return True
    from kafkawire.supervisor.surplus import surplus_brokers

    return bool(surplus_brokers(chosen.data, BrokerConfig(chosen.settings).node_id, 1))


def _is_clustered(settings: Mapping[str, str]) -> bool:
    """Return whether a supervisor is needed to start brokers of other machines, or the follower of
    this one."""
    config = BrokerConfig(settings)
    return config.cluster_takeover_enable or bool(config.replication_listener.strip())


def read(given: Given, environ: Mapping[str, str]) -> Sources:
    """Collect all settings from their sources; the file is read again at each call."""
    pairs = [split_pair("set", text) for text in given.settings]
    return collect(given.options, pairs, environ, given.config)


def notes(chosen: ServeOptions, sources: Sources) -> list[str]:
    """Return warnings for the operator: listeners that advertise the host name of this machine,
    and tokens that can be read on the network."""
    warnings = _readable_tokens(chosen)
    for listener in chosen.listeners:
        host, _ = chosen.advertised[listener.name]
        given = any(
            text.startswith(f"{listener.name}://") or "://" not in text
            for text in sources.options["advertise"].values
        )
        if listener.host in WILDCARDS and not given:
            warnings.append(
                f"listener {listener.name} listens on all addresses and advertises the "
                f"host name {host}; if clients cannot resolve it, use --advertise."
            )
    return warnings


def _readable_tokens(chosen: ServeOptions) -> list[str]:
    """Return a warning if monitors send their tokens without encryption from other machines."""
    if "metrics.token.file" not in chosen.settings:
        return []
    config = BrokerConfig(chosen.settings)
    address = config.metrics_listener.strip()
    host = address.rpartition(":")[0].strip("[]")
    if not address or not config.metrics_token_file or config.metrics_tls or is_loopback(host):
        return []
    return [
        f"metrics.listener={address} is not encrypted: the tokens of metrics.token.file can be "
        "read on the network; set metrics.tls=true."
    ]


def show(sources: Sources) -> None:
    """Print every option and setting with value and source."""
    from kafkawire.cli.shared.tables import print_table

    rows: list[dict[str, object]] = [
        {"name": name, "value": without_password(value.text), "source": value.source}
        for name, value in sorted(sources.options.items())
    ]
    for name, row in sorted(BROKER_CONFIGS.items()):
        found = sources.settings.get(name)
        text, source = (found.text, found.source) if found else (text_of(row.default), "default")
        if row.type is ConfigType.PASSWORD and text:
            text = "********"
        shown = None if text is None else without_password(text)
        rows.append({"name": name, "value": shown, "source": source})
    for name in sorted(sources.texts()[1]):
        found = sources.settings[name]
        rows.append({"name": name, "value": without_password(found.text), "source": found.source})
    print("Order of precedence: command line, environment KAFKAWIRE_*, TOML file, default.")
    print("Settings changed with `kafkawire configs set` override all of these.")
    print_table(rows, ("name", "value", "source"), "settings", wide=True)  # names are long
