"""The manifest in the bucket: publishing, compaction and ownership.

`publisher` writes one delta for all changes since the last one. `compactor` folds deltas into
snapshots in the worker process. `owner` claims the bucket with an epoch, by conditional PUT; a
broker that finds a newer epoch stops writing. `reconcile` compares the manifest with catalog and
rows when a tier is attached. docs/manifest-format.md describes the format.
"""
