"""Streams groups (KIP-1071): one group's state machine.

Members are the stream threads of a Kafka Streams application, and share out its tasks: a task reads
one partition of the source topics of a subtopology. The first member sends the topology. `topology`
decides from it, and from the topics that exist, how many tasks there are and which internal topics
are missing; `assignor` computes who is to have which task; `heartbeat` and `removal` decide on
members, `reconcile` moves one of them, `group` applies. Pure.

Easy to get wrong:

- An active task has one owner in the group: it is free only when its owner has confirmed that it no
  longer runs it. The copies of one task, active and standby, are in different processes, each of
  which may have several members.
- A member that changes the role of a task that it has itself keeps the state of the task: the new
  role begins without waiting for the end of the old one, but for an active task.
- Tasks are assigned only while all topics of the topology exist. The broker that answers a
  heartbeat creates the internal ones after the answer, so a new group gets its tasks with a later
  heartbeat.
- What the assignor wants is the target, and in records. What members move to is the refined
  assignment of its epoch, which is only in memory: see `refine`. After a load it may differ, so the
  first heartbeat compares it with the tasks of members that have reached the epoch.
- Not done: racks and client tags have no effect on standby tasks, as in Kafka 4.4.
"""
