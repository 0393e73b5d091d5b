"""Retention of the tier: local files that have been uploaded, and remote objects.

`local_retention` removes files after `local.retention.*` or when the disk is full, row first; a
job that needs one brings it back (`local_files`). `object_deletion` is what deletes S3 objects:
the log start moves in SQL, then in the manifest (DeleteRecords waits for that); a segment without
mapping rows makes its object DELETE_STARTED, a delta says so, `tier.delete.delay.ms` passes since
a reader of the manifest may be using it, the object goes, then the row.

An object leaves the manifest only when finished objects cover what it had, as far as it is mapped
and its partition is copied. So the bucket alone always has what it ever had between a log start
and a commit offset, whatever is merged, compacted or retried.
"""
