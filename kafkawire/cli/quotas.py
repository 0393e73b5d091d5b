"""`kafkawire quotas`: list, set and remove the client quotas of any Kafka cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kafkawire.cli.shared.outcomes import connect_cluster, print_results
from kafkawire.cli.shared.output import fail
from kafkawire.cli.shared.parameters import (
    LOCAL,
    Json,
    OptionSet,
    Server,
    Wide,
    not_empty,
    with_options,
)
from kafkawire.client.notation import OptionError, parse_rate, split_pair
from kafkawire.client.quotas import QuotaRow, alter_quotas, find_quotas, limit_text
from kafkawire.plural import count
from kafkawire.security.quotas.alterations import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTIONS,
    CONSUMER_BYTES,
    INTEGERS,
    IP,
    PRODUCER_BYTES,
    USER,
    address_of,
)

BYTES = (PRODUCER_BYTES, CONSUMER_BYTES)
COLUMNS = ("user", "client_id", "ip", "quota", "value")
DEFAULT_SHOWN = "(default)"

User = Annotated[
    str, typer.Option("--user", metavar="USER", callback=not_empty, help="This user.")
]  # fmt: skip
Users = Annotated[bool, typer.Option("--users-default", help="Users without a quota of their own.")]
ClientId = Annotated[
    str, typer.Option("--client-id", metavar="ID", callback=not_empty, help="This client id.")
]
ClientIds = Annotated[
    bool, typer.Option("--client-ids-default", help="Client ids without a quota of their own.")
]
Address = Annotated[
    str, typer.Option("--ip", metavar="ADDRESS", callback=not_empty, help="This address.")
]
Addresses = Annotated[
    bool, typer.Option("--ips-default", help="Addresses without a quota of their own.")
]


@dataclass(frozen=True)
class EntityOptions(OptionSet):
    """Whose quotas a command is about."""

    user: User = ""
    users_default: Users = False
    client_id: ClientId = ""
    client_ids_default: ClientIds = False
    ip: Address = ""
    ips_default: Addresses = False


NO_ENTITY = EntityOptions()


@with_options
def list_quotas(
    whose: EntityOptions = NO_ENTITY,
    server: Server = LOCAL,
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """List client quotas: all, or those that name a user, a client id or an address.

    Examples:
      kafkawire quotas list
      kafkawire quotas list --user alice --json
    """
    wanted = _entity(whose)
    with connect_cluster(server) as found:
        quotas = find_quotas(found, wanted)
    rows = [row for each in quotas for row in _rows(each, as_json)]
    print_results(rows, COLUMNS, count(len(rows), "quota"), as_json, wide)


@with_options
def change(
    pairs: Annotated[
        list[str],
        typer.Argument(metavar="QUOTA=VALUE...", help="For example producer_byte_rate=1MB/s."),
    ],
    whose: EntityOptions = NO_ENTITY,
    server: Server = LOCAL,
) -> None:
    """Set quotas of a user, a client id, a user with a client id, or an address; others stay.

    producer_byte_rate, consumer_byte_rate: bytes a second, as in 1MB/s or 512KiB/s.
    request_percentage: percent of the time of the event loop. controller_mutation_rate: partitions
    a second. connection_creation_rate, of addresses only: connections a second.

    Examples:
      kafkawire quotas set producer_byte_rate=1MB/s --user alice
      kafkawire quotas set request_percentage=25 --users-default --client-id etl
      kafkawire quotas set connection_creation_rate=10 --ips-default
    """
    entity = _one_entity(whose)
    try:
        given = [split_pair("QUOTA", pair) for pair in pairs]
        values = {_quota(name, IP in entity): _value(name, text) for name, text in given}
    except OptionError as wrong:
        fail(wrong, 2)
    if len(values) < len(pairs):
        fail("give each QUOTA once", 2)
    with connect_cluster(server) as found:
        alter_quotas(found, entity, values)
    print(f"set {count(len(values), 'quota')} of {_name(entity)}")


@with_options
def remove(
    quotas: Annotated[
        list[str],
        typer.Argument(metavar="QUOTA...", callback=not_empty, help="Or all."),
    ],
    whose: EntityOptions = NO_ENTITY,
    server: Server = LOCAL,
) -> None:
    """Remove quotas of a user, a client id, a user with a client id, or an address.

    Examples:
      kafkawire quotas remove producer_byte_rate --user alice
      kafkawire quotas remove all --client-id etl
    """
    entity = _one_entity(whose)
    try:
        names = [] if quotas == ["all"] else [_quota(name, IP in entity) for name in quotas]
    except OptionError as wrong:
        fail(wrong, 2)
    with connect_cluster(server) as found:
        stored = next((row for row in find_quotas(found, entity) if row.entity == entity), None)
        values = {} if stored is None else stored.values
        missing = [name for name in names if name not in values]
        if missing or not values:
            fail(
                f"{_name(entity)} has no quota {' or '.join(missing)}".rstrip()
                + ": see `kafkawire quotas list`"
            )
        gone = dict.fromkeys(names or values)
        alter_quotas(found, entity, gone)
    print(f"removed {count(len(gone), 'quota')} of {_name(entity)}")


def _entity(whose: EntityOptions) -> dict[str, str | None]:
    """Return the named entity, maybe empty. An invalid one ends the command with exit code 2."""
    given = (
        (USER, "--user", whose.user, "--users-default", whose.users_default),
        (CLIENT_ID, "--client-id", whose.client_id, "--client-ids-default",
         whose.client_ids_default),
        (IP, "--ip", whose.ip, "--ips-default", whose.ips_default),
    )  # fmt: skip
    entity: dict[str, str | None] = {}
    for kind, option, name, default_option, default in given:
        if name and default:
            fail(f"give only one of {option} and {default_option}", 2)
        if name or default:
            entity[kind] = name or None
    if IP in entity and len(entity) > 1:
        fail("a quota of an address cannot be of a user or a client id too", 2)
    if whose.ip and address_of(whose.ip) is None:
        fail(OptionError("--ip", whose.ip, "an IPv4 or IPv6 address"), 2)
    return entity


def _one_entity(whose: EntityOptions) -> dict[str, str | None]:
    entity = _entity(whose)
    if not entity:
        fail(
            "give --user, --client-id, both, or --ip, or --users-default, --client-ids-default or "
            "--ips-default",
            2,
        )
    return entity


def _quota(name: str, of_address: bool) -> str:
    """Return a name of a quota that such an entity can have. OptionError."""
    allowed = (CONNECTIONS,) if of_address else CLIENT_KEYS
    if name not in allowed:
        kind = "an address" if of_address else "users and client ids"
        raise OptionError("QUOTA", name, f"a quota of {kind}: {', '.join(allowed)}")
    return name


def _value(name: str, text: str) -> float:
    """Parse the value of a quota. OptionError."""
    if name in BYTES:
        value = float(int(parse_rate(name, text)))
        if value < 1:
            raise OptionError(name, text, "at least 1 byte per second")
        return value
    whole = name in INTEGERS
    maximum = INTEGERS[name][0] if whole else 1e15
    allowed = f"a {'whole ' if whole else ''}number above 0, at most {maximum:.0f}"
    try:
        value = float(text)
    except ValueError:
        raise OptionError(name, text, allowed) from None
    if not 0 < value <= maximum or (whole and value % 1):
        raise OptionError(name, text, allowed)
    return value


def _rows(found: QuotaRow, as_json: bool) -> list[dict[str, Any]]:
    """Return a row for each quota. JSON has the type of each named part, as the default of a type
    and a part that is not named would be the same otherwise."""
    if as_json:
        entity = [
            {"type": kind.replace("-", "_"), "name": name} for kind, name in found.entity.items()
        ]
        return [
            {"entity": entity, "quota": quota, "value": value}
            for quota, value in found.values.items()
        ]
    names = {
        kind.replace("-", "_"): DEFAULT_SHOWN if name is None else name
        for kind, name in found.entity.items()
    }
    return [
        {**dict.fromkeys(COLUMNS), **names, "quota": quota, "value": limit_text(quota, value)}
        for quota, value in found.values.items()
    ]


def _name(entity: dict[str, str | None]) -> str:
    return " and ".join(
        f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items()
    )
