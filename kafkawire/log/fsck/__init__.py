"""Check the data folder of a stopped broker: journals, segments, rows and offsets against each
other.

`check` runs all of it. `journals` runs recovery on `read_only_disk`, a file system that changes
nothing; `offsets` verifies that every offset is in a segment or a journal; `objects` checks the
rows of the remote tier; `give_up` is what `--skip-lost` gives up of the journals; `report`
describes each problem with what repairs it. Nothing unknown is deleted: it is moved to the
quarantine.
"""
