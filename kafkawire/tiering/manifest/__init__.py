"""The manifest in the bucket: published, compacted, owned by one broker.

`publisher` writes one delta for all changes since the last one, `compactor` folds deltas into
snapshots in the worker process, `owner` is an epoch claimed by conditional PUT: a broker that
finds a newer one stops writing. `reconcile` compares the manifest with catalog and rows when a
tier is attached. The format is docs/manifest-format.md.
"""
