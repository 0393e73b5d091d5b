"""The description of a job, and the files that record its runs.

`job` and `section` read a job's TOML, `layout` derives the columns of its table; `naming` gives
files their names; `runs` and `state` are the records of runs, stored next to the table.
"""
