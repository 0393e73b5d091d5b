"""Parts of every coordinator: its life, its appends, loading, snapshots, and answers that wait for
commits.

Used by kafkawire.groups, kafkawire.transactions and kafkawire.schedules.

Easy to get wrong:

- A coordinator that has resigned must not write: another broker may lead the partition. Each task
  compares the `_life` of the coordinator after every wait.
- Calls from the follower of metadata (`CoordinatorService.lead`, `resign`) hold the lock of the
  topic service, for which `open` may wait: they must not wait for `open`.
"""
