"""Every topic is a Spark table: reading segments where they lie, without the broker.

`model` has the words, `places` opens a bucket or folder, `catalog` knows what lies where, `plan`
splits it over tasks, `reading` turns a task into Arrow batches, `decode` is the kernel of that.
`register(spark)` makes `spark.read.format("kafkawire")` known. `pipeline` writes tables.
Imports nothing of the broker but codec, manifest, messages and client.
"""
