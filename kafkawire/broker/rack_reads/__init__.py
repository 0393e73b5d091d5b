"""Reading at a broker of the client's rack what another broker leads (KIP-392), from the remote
tier, or from the copy of a follower.

Every broker can read every object, so a consumer need not read old records at the leader, which may
be in another zone. With `replica.selector.class` set, each partition has a *reader* in each rack
that is not its leader's: an alive broker that is not draining (`selector`). Metadata names the
readers as replicas, since Java clients send to no other broker. The leader answers a consumer of
such a rack with PreferredReadReplica where its offset is in the remote tier.

The reader serves it from a *view*: partitions without any state of a leader, made of the mapping
rows in SQL, of the ranges below the commit offset that it can read (`views`). Views are loaded by
the first read, again after some seconds, and after a failed read: the leader may have replaced a
segment. Everything else is answered NOT_LEADER_OR_FOLLOWER, with which every client goes to the
leader at once. That includes offsets at or after the commit offset, and reads that fail here,
because the leader may have a local copy.

With durability=replicated a rack with a follower that is in sync gets all committed records: the
reader is the broker on its machine, which indexes the copied journals up to the committed position
(`copies`).

Easy to get wrong:

* An answer without records and without an error would leave the client here forever, because it
  never sees the end of the partition: a view that has nothing at an offset refuses it.
* A client that comes back to the leader with the offset it was sent away with got nothing there.
  The leader serves it for a minute (`redirects`), else a reader that cannot be reached or cannot
  reach the bucket would stop its clients.
* Offsets below the commit offset may be in a segment without an object, after a merge: only the
  leader's folder has them.
* A rebuild puts records of open transactions into segments, whose end the leader knows first: a
  view ends at the first such record that the checkpoint names.
"""
