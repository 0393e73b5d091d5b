"""Journals: the files every append is written to first, their format, index and ledger.

A journal begins with a header and holds frames. A partition's first batch in each journal is
preceded by a *naming frame* (partition number, topic, index, epoch, next offset, log start), and
*catalog frames* (a topic created, configured or deleted) are written again before the journal that
holds them is recycled. So the journals alone name everything in them, and `restore --from-log` can
rebuild a lost catalog from them. A rolled journal gets an index file: the columns of the hot index.

Journals that are no longer needed are kept as *spares* and overwritten, which is faster than the
first write of a new file.

Easy to get wrong:

- An index file is written from the rows in memory, so recovery loads all rows of a journal without
  one, even above the memory bound, and a journal is indexed only after a commit that started when
  it was rolled.
- A journal is removed from the ledger before its file is recycled, and a start turns a file into a
  spare only if the new ledger does not name it: otherwise a crash between the two would look like a
  loss.
- Responses with long runs are sent from the journals' files by the kernel, which refers to pages of
  the page cache until the client has read them. A spare that was sent from (`Journal.shared`) is
  overwritten only after its pages were dropped from the page cache, and deleted if that fails.
"""
