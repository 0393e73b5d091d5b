"""Bytes to requests and responses to bytes; the asyncio shell.

`connection` is one client without sockets: frames, order, limits. `listener` is the device,
`host` what connections share. `run` starts and stops the parts in order, `reload` is SIGHUP.

Backpressure: a connection is not read while its requests in progress exceed
`connection.inflight.bytes`, or those of all connections `inflight.bytes`; parts of that are
reserved for small requests, so they always pass. No further request of a connection is started
while its client does not take its answers, which count in `inflight.answer.bytes`
(kafkawire.broker.answer_memory) until they are sent. While others wait for memory, `slow`
disconnects clients that take or send less than 64 KiB a second.

Easy to get wrong: a request starts when those before it on its connection have been applied, not
answered. A Produce may follow a Produce at once; everything else waits for their write. A parked
JoinGroup or Fetch delays no other request.
"""
