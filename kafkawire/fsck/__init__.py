"""Check the data folder of a stopped broker: journals, segments, rows and offsets against each
other.

`check` runs all of it. `journals` runs recovery on `log.io.read_only_disk`, a file system that
changes nothing; `offsets` verifies that every offset is in a segment or a journal; `objects` checks
the rows of the remote tier; `give_up` gives up lost offsets of the journals for `--skip-lost`;
`report` describes each problem and its repair. Unknown files are never deleted: they are moved to
the quarantine.
"""
