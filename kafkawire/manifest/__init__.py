"""The manifest of a bucket, a list of its contents that restore, scrub and Spark read without a
broker.

`reader.read_manifest` reads it, `state` defines its contents, `contents.Manifest` finds the records
of a partition, `format` encodes it (docs/manifest-format.md), `fold` folds deltas into a snapshot,
`keys` names the objects of a bucket. All modules are pure, and import only `kafkawire.codec`.
"""
