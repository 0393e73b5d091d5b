"""Export of topics to tables, each offset exactly once: the library of `kafkawire pipeline`.

`job` reads a job's TOML, `engine` does a run of it, `table` is what a table format must offer.

A *run* is fixed by its intent before it writes: ranges, their split into tasks, and so the names
of its files. Tasks write whole files and then report; the table commits the run once, by its
number. All of it is written if absent or may be repeated, so the next run repairs an
interruption, and two drivers do the same run. A task that was presumed dead checks whether its run
has ended before it writes a file, and the next compaction removes what it wrote after all.
`tests/spark/pipeline/test_engine_ends.py` ends a driver, and starts another, at each call.
"""
