"""The data source `kafkawire`: topics read as Spark tables.

The driver resolves `options` against `catalog` to `ranges` of offsets, `plan` splits these into
tasks of about the same bytes. `read_task` turns a task into Arrow batches with
kafkawire.spark.decode, from `files` and, for what is in no segment yet, from the broker (`tail`).
Every offset is accounted for: a row, or a gap with its reason. `stream` is the same as micro
batches.
"""
