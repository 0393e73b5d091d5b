"""Replication of a broker (durability=replicated): created when the broker starts; the follower on
this machine registered in SQL; journals taken from a follower into an empty data folder.

The followers themselves are processes of kafkawire.replication, started by the supervisor."""
