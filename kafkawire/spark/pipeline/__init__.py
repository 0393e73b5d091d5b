"""Topics into tables, each offset exactly once: what `kafkawire pipeline` does, as a library.

`job` reads a job's TOML, `engine` does a run of it, `table` is what a table format must offer.
A *run* is fixed by its intent before anything is written and is there when the table says so.
"""
