"""Uploads: which segments, in which order, and how far each partition has got.

`candidates` selects segments with a partition that is to be copied: at once with
`tiering.min.object.bytes`, otherwise after four fifths of `tiering.max.lag.ms`. `scheduler`
admits the oldest deadline first, within `tier.upload.buffer.bytes` and the rate limit, and has
the reason for everything that waits (`kafkawire tier why`). One transaction enters the admitted
ones as COPY_STARTED with a new uuid each, and raises dispatch offsets. `uploader` has the storage
process copy the file, which is pinned meanwhile; a failed attempt becomes DELETE_STARTED and the
segment is tried under another uuid. `finisher` publishes one manifest delta for all finished
meanwhile, then one transaction makes them COPY_FINISHED and raises commit offsets.

Easy to get wrong:

- A segment that was replaced during its upload is garbage and is removed like any other object.
- STARTED rows after a crash are never adopted: whether their objects are whole is unknown.
- After a crash the manifest may name more than SQL does; attaching compares them.
"""
