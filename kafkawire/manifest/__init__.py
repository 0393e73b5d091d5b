"""The bucket's own account of what is in it: read by restore, scrub and Spark, without a broker.

`reader.read_manifest` reads it, `state` says what it holds, `contents.Manifest` answers where the
records of a partition lie, `format` is its bytes (docs/manifest-format.md), `fold` makes one
snapshot of many deltas, `keys` names the objects of a bucket. All of it is pure, and imports
nothing of the broker but `kafkawire.codec`.
"""
