"""The network server: requests from bytes, responses to bytes, on asyncio.

`connection` is one client without sockets: frames, order, limits. `listener` has the sockets,
`host` the state shared by connections. `run` starts and stops the components in order, `reload`
handles SIGHUP.

Backpressure: a connection is not read while its requests in progress exceed
`connection.inflight.bytes`, or those of all connections `inflight.bytes`; parts of that are
reserved for small requests, so that they are never blocked by large ones. No further request of a
connection is started while its client does not read its responses, which count in
`inflight.answer.bytes` (kafkawire.broker.answer_memory) until they are sent. While others wait for
memory, `slow` disconnects clients that read or send less than 64 KiB a second.

Easy to get wrong: a request starts when those before it on its connection have been applied, not
answered. A Produce may follow a Produce at once; all other requests wait for their write. A parked
JoinGroup or Fetch delays no other request.
"""
