"""Names and records that strangers wrote, to be shown as text on every page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kafkawire.client.cluster import Cluster
from kafkawire.client.offsets import call_coordinator, commit
from kafkawire.testing import TopicProducer, create_topic
from tests.kit.console import member

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    '<div hx-get="/topics" hx-trigger="load" hx-swap="outerHTML">',
    '<div hx-sse:connect="/events/overview">',
    "<svg onload=alert(1)>",
    '<iframe srcdoc="<script>parent.alert(1)</script>">',
    '<form action="/topics"><button id="search" autofocus>',
    "<style>body { display: none }</style>",
    "<meta http-equiv=refresh content='0;url=/groups'>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}${alert(1)}",
    "</pre></details></main>",
    "\u202egnp.exe",
    "\x1b]0;owned\x07",
)
GROUPS = (*HOSTILE, "..", "a/b?c#d", "%2e%2e", "x" * 300)
TOPICS = ("hostile", "__proto__", "constructor", "..." + "x" * 246)
"""Topics may have only letters, digits, dots, dashes and underscores."""


@contextlib.contextmanager
def write_hostile_data(bootstrap: str) -> Iterator[None]:
    """Write each text as key, value, header, JSON, group and client; a member stays until the
    context ends."""
    for name in TOPICS:
        create_topic(bootstrap, name)
    producer = TopicProducer(bootstrap)
    for text in HOSTILE:
        data = text.encode()
        producer.send(TOPICS[0], data, key=data, headers=[(text, data)])
        quoted = data.replace(b'"', b"'").replace(b"\x1b", b"").replace(b"\x07", b"")
        producer.send(TOPICS[0], b'{"%s": "%s"}' % (quoted, quoted))
    with Cluster(bootstrap) as cluster:
        for group in GROUPS:
            codes = call_coordinator(
                lambda name=group: commit(cluster, name, {(topic, 0): 0 for topic in TOPICS})  # type: ignore[misc]
            )
            assert set(codes.values()) == {0}
    with member(bootstrap, "<b>members</b>", HOSTILE[1], TOPICS[0]):
        yield
