"""The commit log: journals, partitions, segments, recovery, and the ports to the machine.

`manager.Log` assembles all of it. Appends go through `append` into the files of `journal`;
`partition` knows where each batch is; `segments` are sorted files written from rolled journals;
`maintenance` is what happens periodically; `recovery` turns the bytes found after any end of the
process into partitions again. `hooks` reports what happens to the remote tier and to `manifest`,
the account of the data folder for readers without a broker. `fsck` checks the folder of a stopped
broker, `rebuild` makes lost metadata again. `io` has the ports and what implements them.
"""
