"""Retention of the tier: local files that have been uploaded, and remote objects.

`local_retention` removes files after `local.retention.*` or when the disk is full, after their row
is updated; a job that needs a file downloads it again (`local_files`). `object_deletion` deletes S3
objects in these steps: the log start moves in SQL, then in the manifest (DeleteRecords waits for
that); when a segment has no mapping rows any more, its object becomes DELETE_STARTED; a delta
removes it from the manifest; `tier.delete.delay.ms` passes, because a reader of the manifest may be
using it; the object is deleted, then its row.

An object leaves the manifest only when other finished objects cover its offsets, as far as they are
mapped and their partition is tiered. So the bucket always has all offsets between a log start and a
commit offset, during merges, compaction and retries, too.
"""
