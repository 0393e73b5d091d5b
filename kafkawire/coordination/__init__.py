"""Parts of every coordinator: answers that wait for commits, and snapshots of its records.

Used by kafkawire.groups and kafkawire.transactions.
"""
