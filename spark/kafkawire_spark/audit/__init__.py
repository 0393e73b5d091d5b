"""Verify that a table has every offset exactly once: `pipeline audit`.

`islands` merges consecutive offsets, `coverage` has the state of every offset by the run reports,
`continuity` compares the two, `verdict` formats the differences. `listing` lists a table's files,
`scanning` reads them, `judging` aggregates the results, `through` runs both in Spark tasks.
`against` checks gaps in the source, `counting` counts its records, which `counts` compares with
rows. `job` is the whole audit.
"""
