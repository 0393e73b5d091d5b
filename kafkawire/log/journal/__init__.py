"""Journals: the files every append is written to first, their format, index and ledger.

A journal begins with a header and holds frames. A partition's first batch in each journal is
preceded by a *naming frame* (partition number, topic, index, epoch, next offset, log start), and
*catalog frames* (a topic created, configured or deleted) are written again before the journal that
holds them is recycled. So the journals alone name everything in them, and `restore --from-log` can
rebuild a lost catalog from them. A rolled journal gets an index file: the columns of the hot index.

Journals that are no longer needed are kept as *spares* and overwritten, which is faster than the
first write of a new file.

Easy to get wrong:

- A recycled journal is full of valid frames, of other journal numbers. A frame names its own
  journal and position under its checksum, and new numbers are above every number the folder ever
  had.
- A journal may exist without having been used: if the write batch that started it failed, later
  ones may still have fitted into the journal before it, whose end its header then states wrongly.
  Recovery believes the header only if its run is not older than the frames before it.
- An index file is written from the rows in memory, so recovery loads all rows of a journal without
  one, even above the memory bound, and a journal is indexed only after a commit that started when
  it was rolled.
- A journal is removed from the ledger before its file is recycled, and a start turns a file into a
  spare only if the new ledger does not name it: otherwise a crash between the two would look like a
  loss.
- The last record of the ledger is followed by zeros; otherwise a damaged last record would look
  like a missing one, and a recycled journal like a lost one.
- Journals are renamed, never truncated: reading a truncated mapping ends the process.
"""
