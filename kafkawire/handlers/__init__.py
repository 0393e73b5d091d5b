"""One module per API, and the one table that lists them.

`table` has a row per API; ApiVersions and the README's list are computed from it, and a handler is
imported when its API is first requested. A handler's docstring lists the changes of each version
and what is not implemented (docs/apis.md). `exchange` is one request and its position in the order
of responses, `context` the argument of most handlers, `slices` encodes long responses in steps,
`budget` bounds the work for one client in an event-loop iteration, `failures` makes the response if
a handler raises. Produce, Fetch, Heartbeat and EndTxn are hot: they parse the receive buffer
themselves.

Easy to get wrong:

- Produce is advertised from version 0 and served from 3, as Kafka does for librdkafka
  (KAFKA-18659).
- ApiVersions of an unknown version must not be parsed; the response has version 0 (KIP-511), and
  its header never has tags.
- An array element of one byte becomes a kilobyte of objects: so the number of elements of a request
  is limited by its size, and large requests are served eight at a time.
- A loop whose length a client decides awaits `ctx.give_way()` (or `env.slices`) between two
  steps. `tests/broker/test_event_loop_time.py` checks every API.
"""
