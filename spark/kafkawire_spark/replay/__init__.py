"""`pipeline replay`: write a table's rows back to a topic, in order, each exactly once.

`record` is the plan, fixed before the first row is written. `rows` reads the table in offset order,
`lane` writes one partition, `target` is the topic, `job` is the whole replay.
"""
