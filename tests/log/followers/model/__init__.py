"""A model of the protocol of `durability=replicated`: one broker with several lives on several
machines. It has no code of the product; tests/log/followers/test_replication_model.py has the
walks.

A *life* is one process of the broker, in a data folder on the disk of one machine. It registers in
SQL, which gives it the next epoch, and reads the row `replica_set` there: the epoch of the life
that has stored it, and the in-sync followers. It *continues* that epoch: its log is the one in its
own folder, if that is the folder that SQL has as *paired*; otherwise its folder is *fresh*, and it
fences an in-sync follower, copies the log from it, and pairs the folder. It connects to followers,
and is *established* by a row of its own in SQL, which names followers that have all of its log.
From then on it acknowledges what is durable in its folder and at each in-sync follower.

A start may be on any machine while earlier lives are still running: they have stalled, and continue
at any time with what they know. Processes end, machines lose their power or their disks,
connections are cut, and statements arrive in SQL late or without an answer. The last disk that has
everything is not lost: if it is, no protocol helps.

What a life appends before it is established was never acknowledged, and may be in its folder and in
copies. It is not a part of the log that a later life continues: in each folder and in each copy,
that log ends where entries of a later epoch than the continued one begin. An implementation knows
these positions from the epoch in each entry, or stores them when an epoch begins to write.
"""
