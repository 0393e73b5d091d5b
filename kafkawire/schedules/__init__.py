"""Schedule topics: records that are delivered to another topic when they are due.

A topic with `schedule.target.topic` or `schedule.target.header` is a schedule topic. Each of its
partitions has a `Deliverer`. It follows the committed records, keeps their due times in an index on
disk (`waiting`) and the next of them in memory (`window`), and appends those that are due to their
targets. Before a step of delivery its plan is appended to `__schedule_state`; after a crash the
steps that may be incomplete are repeated, and the target partitions recognize what they already
have by producer id and sequence number. So each record is delivered exactly once.

Easy to get wrong:

- The plan must be in the log before its deliveries: a delivery without a plan would be repeated
  with other sequence numbers.
- The index on disk may be older than the log or lost, never newer than what is committed. What was
  delivered is known from `__schedule_state` alone (`progress`).
- Records that arrive late, and clocks that jump backwards, make due times lie below those already
  delivered. `progress` is therefore not one point but a staircase.
"""
