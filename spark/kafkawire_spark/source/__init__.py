"""The data source `kafkawire`: topics read as Spark tables.

The driver resolves `options` against a catalog to `ranges` of offsets, which kafkawire.reading
splits into tasks and reads as Arrow batches. Every offset is accounted for by a row, or by a gap
with its reason. `stream` reads micro batches.
"""
