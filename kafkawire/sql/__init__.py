"""SQL over topics in this process, on DuckDB, without starting Spark.

`engine` runs a statement. Each topic that it names is a `topic_dataset`, which DuckDB asks for
columns and rows; `pruning` finds the partitions, offsets, times and keys that can satisfy the
filter. `texts` makes the columns `key_text` and `value_text`.
Planning and decoding are those of kafkawire.reading. `failures` makes one sentence of DuckDB's
errors.
"""
