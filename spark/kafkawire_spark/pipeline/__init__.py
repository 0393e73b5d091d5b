"""Export of topics to tables, each offset exactly once: the library of `kafkawire pipeline`.

`jobs.job` reads a job's TOML, `engine` executes a run of it, `tables.port` is the interface of
table formats.

A *run* is fixed by its intent before it writes: ranges, their split into tasks, and so the names of
its files. Tasks write whole files and then report; the table commits the run once, by its number.
Every step is written only if absent or may be repeated, so the next run completes an interrupted
one, and two concurrent drivers execute the same run. A task that was presumed dead checks whether
its run has ended before it writes a file, and the next compaction removes files written
nevertheless. `tests/spark/pipeline/test_engine_ends.py` kills a driver, and starts another, at each
call.
"""
