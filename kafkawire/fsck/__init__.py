"""Check the data folder of a stopped broker: journals, segments, rows and offsets against each
other.

`check` runs all of it, on the evidence that a restore would gather
(kafkawire.restore.data_folder). `offsets` verifies that every offset is in a segment or a journal;
`segments` also checks the rows of the remote tier; `report` describes each problem and its repair,
and gives up lost offsets of the journals for `--skip-lost`. Unknown files are never deleted: they
are moved to the quarantine.
"""
