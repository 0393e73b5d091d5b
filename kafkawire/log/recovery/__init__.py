"""Recovery: read the journals after any end of the process, and decide which of it is valid.

The rule that decides: a gap in a journal is damage if anything proves that bytes after it were
committed (a later frame, the checkpoint, the ledger, a clean end); otherwise the log is cut there.
Damage is reported with topic, partition and offsets, its offsets are never assigned again, and
reads of it get CORRUPT_MESSAGE.

Damaged offsets stay until an operator gives them up with `kafkawire fsck --repair --skip-lost` on
the stopped broker: only the error shows a consumer the loss, and a journal may be restored from a
copy. The command only writes `given_up`; the next start cuts past these ranges, with an entry in
the segment's section `lost`, so there is a single way from journals into segments.

`identity` refuses a data folder and metadata that do not belong together.

Easy to get wrong:

- A checkpoint does not bound what was in a journal whose end is lost. Records may have followed its
  position and been lost together with the committed position: the ledger's bounds count.
"""
