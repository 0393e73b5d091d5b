"""Parts of a page: a list of which one page is shown, and what a broker refuses to answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from kafkawire.client.cluster import Cluster
from kafkawire.client.connection import ClientConnection
from kafkawire.client.errors import BrokerError, ClientError, Unsupported
from kafkawire.client.tier import CommandRefused
from kafkawire.console.views.own import NotKafkawire, OwnBroker

T = TypeVar("T")

PAGE = 100
"""Rows of one page of a list."""


class ClusterFinding(NamedTuple):
    """A problem or a fact. `stuck`: records are not served, are not read, or are at risk; `remedy`:
    what to do, empty if nothing; `page`, `topic` and `group`: the first part of the path of the
    page that shows more, and what it is about, empty if none."""

    stuck: bool
    sentence: str
    remedy: str = ""
    page: str = ""
    topic: str = ""
    group: str = ""


class ListPage(NamedTuple, Generic[T]):
    """One page of the rows that match. `total`: all rows."""

    rows: Sequence[T]
    matching: int
    total: int
    page: int
    pages: int


def page_of(found: Sequence[T], page: int, total: int | None = None) -> ListPage[T]:
    """Return one page of rows; a page after the last is the last. Pure."""
    pages = max(1, -(-len(found) // PAGE))
    page = min(max(1, page), pages)
    shown = found[(page - 1) * PAGE : page * PAGE]
    return ListPage(shown, len(found), len(found) if total is None else total, page, pages)


def attempt(refused: list[str], ask: Callable[[], T]) -> T | None:
    """Return an answer. None if the broker refuses it or does not have the request, with the reason
    as a sentence added to `refused`. ClientError for other failures: the connection may have half
    an answer."""
    try:
        return ask()
    except (BrokerError, CommandRefused, NotKafkawire, Unsupported) as error:
        refused.append(sentence_of(error))
        return None


def ask_brokers(
    cluster: Cluster, own: OwnBroker, refused: list[str], ask: Callable[[ClientConnection], T]
) -> list[T]:
    """Return what each broker answers that is kafkawire; the reasons of the others are added to
    `refused`, each once. ClientError: see attempt."""
    found: list[T] = []
    reasons: list[str] = []
    for node in cluster.nodes():
        attempt(reasons, lambda node=node: found.append(own.ask(cluster, node, ask)))  # type: ignore[misc]
    refused += dict.fromkeys(reasons)
    return found


def sentence_of(error: Exception) -> str:
    """Return an error as a whole sentence."""
    text = str(error).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def first_error(ask: Callable[[], T]) -> T | ClientError:
    """Return an answer, or why there is none: for one broker of many."""
    try:
        return ask()
    except ClientError as error:
        return error
