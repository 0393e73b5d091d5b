"""The follower process: copies of the commit logs of brokers on other machines.

For topics with `durability=replicated` a broker streams its commit log, the bytes of its journals,
to followers. A follower writes them to files with the same names at the same positions, syncs, and
acknowledges. It does not decode records. A broker that takes over another one fences the log at the
followers, lists their copies, reads one, and continues the log.

It imports only the standard library, `crc32c`, and the packages for child processes and log lines:
neither SQL nor the log. `messages` and `wire` are pure, and the broker uses them too; all calls of
files are in `machine`.

Facts that are easy to get wrong:

- **Epochs decide.** A broker has a higher epoch with each start. Writes are refused below the
  fence and below the newest copy's epoch.
- **ACK is durable, HAVE is where to continue.** After a start of the follower, HAVE may be lower
  than an earlier ACK, by about 32 MiB. The broker sends these bytes again, over the old ones. LIST
  and READ still have all acknowledged bytes.
- **Two logs have the same bytes only before the log position where one continued the other.** A
  copy knows that log position for each earlier epoch (its lineage), and LIST of an earlier epoch
  ends there. If two starts of a broker both continued epoch 1, because the first one failed, their
  logs differ from the lower of the two log positions on: the copy of the first one is cut there.
- **A change of the epoch is stored before bytes are removed.**
- **A failed fsync ends the process.** It acknowledges nothing more; the supervisor starts it again.
- **A torn tail is kept.** Files may have bytes that were never acknowledged; the recovery of the
  broker that takes over cuts them.
- **A damaged copy is not used, and not changed.** Its epoch is refused, the other copies serve. The
  log is sent again once the broker has a higher epoch.
- **One ACK for many BYTES.** What one receive brings is synced once.

Connections are authenticated by a key, not encrypted. Not done: compression; a limit for the space
that a broker's copies use; verification of old bytes.
"""
