"""The data sink `kafkawire`: rows written to topics, one transaction per micro-batch or batch.

Tasks encode rows as record batches and *stage* them: in their commit messages, or in files. Nothing
reaches the broker from a task, so a task may fail, be repeated, or run twice. The driver then
commits: one producer id, one transaction with all staged batches and the number of the micro-batch
as a consumer group's offset (`progress`), so a repeated micro-batch finds that it is committed.

`options` are those of Spark's Kafka sink, and some additions; `rows` and `partitions` are the work
of a task, `staging` is what it passes to the driver, `transaction` the driver's commit, `writer`
the interface to Spark.
"""
