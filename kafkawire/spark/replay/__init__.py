"""A table's rows written back to a topic, in order, each once: `pipeline replay` is this.

`record` is what is fixed before the first row is written, `rows` reads the table in the order of
offsets, `lane` writes one partition, `target` is the topic, `job` is all of it.
"""
