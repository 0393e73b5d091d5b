"""Parts of every coordinator: its life, its appends, loading, snapshots, and answers that wait for
commits.

Used by kafkawire.groups and kafkawire.transactions.
"""
