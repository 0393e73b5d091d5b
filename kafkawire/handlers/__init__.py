"""One module per API, and the one table that lists them.

`table` has a row per API; ApiVersions and the README's list are computed from it, and a handler
is imported when its API is first requested. A handler's docstring says what each version changed
and what is not done (docs/apis.md). `exchange` is one request and its place in the order of
answers, `context` what most handlers are given, `slices` encodes long answers in steps, `budget`
bounds what one event-loop iteration may spend on one client, `failures` answers when a handler
raised. Produce, Fetch and Heartbeat are hot: they read the receive buffer themselves.

Easy to get wrong:

- Produce is advertised from version 0 and served from 3, as Kafka does for librdkafka
  (KAFKA-18659).
- ApiVersions of an unknown version must not be parsed; the answer has version 0 (KIP-511), and
  its response header never has tags.
- An array element of one byte becomes a kilobyte of objects: a request may have only as many
  elements as its size allows, and large requests are served eight at a time.
- A loop whose length a client decides awaits `ctx.give_way()` (or `env.slices`) between two
  steps. `tests/broker/test_event_loop_time.py` checks every API.
"""
