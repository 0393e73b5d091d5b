"""Several brokers change one catalog: each applies the changes of the others.

A change is planned with the catalog in memory and refused by SQL if another broker has changed the
catalog since; it is then planned again (`lock`). Changes of other brokers are read by their version
and applied to the catalog, the log and the coordinators (`applier`, `leadership`), at least every
POLL_S (`follower`).
"""
