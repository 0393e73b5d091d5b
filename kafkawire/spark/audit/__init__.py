"""Does a table have every offset once? `pipeline audit` is this.

`islands` turns offsets into runs, `coverage` is what the runs' accounts say of every offset,
`continuity` holds one against the other, `verdict` has the words for what differs. `listing` says
which files a table has, `scanning` reads them, `judging` gathers what was read, `through` has both
done by Spark's tasks. `against` asks the source about gaps, `counting` how many records it has,
which `counts` compares with rows. `job` is all of it.
"""
