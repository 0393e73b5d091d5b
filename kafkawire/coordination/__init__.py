"""Parts of every coordinator: its life, its appends, loading, snapshots, and answers that wait for
commits.

Used by kafkawire.groups, kafkawire.transactions and kafkawire.schedules.

Easy to get wrong:

- A coordinator that has resigned must not write. Each task compares the `_life` of the coordinator
  after every wait.
- `CoordinatorService.lead` and `resign` must not wait for `open`: their caller holds a lock for
  which `open` may wait.
"""
