"""The data source `kafkawire`: topics read as Spark tables.

The driver resolves `options` against `catalog` to `ranges` of offsets, `plan` splits these into
tasks of about the same bytes. `read_task` reads a task as Arrow batches with
kafkawire.spark.decode, from `files` and, for records that are in no segment yet, from the broker
(`tail`). Every offset is accounted for by a row, or by a gap with its reason. `stream` reads micro
batches.
"""
