"""Uploads of segments: their selection, their order, and the upload progress of partitions.

`candidates` selects segments with a tiered partition: at once if they have
`tiering.min.object.bytes`, otherwise after four fifths of `tiering.max.lag.ms`. `scheduler` admits
the oldest deadline first, within `tier.upload.buffer.bytes` and the rate limit, and has the reason
for everything that waits (`kafkawire tier why`). One transaction inserts the admitted ones as
COPY_STARTED with a new uuid each, and raises dispatch offsets. `uploader` has the storage process
copy the file, which is pinned meanwhile; a failed attempt becomes DELETE_STARTED and the segment is
uploaded again under another uuid. `finisher` publishes one manifest delta for all finished uploads,
then one transaction makes them COPY_FINISHED and raises commit offsets.

Easy to get wrong:

- A segment that was replaced during its upload is garbage and is removed like any other object.
- COPY_STARTED rows are never completed after a crash, because their objects may be incomplete.
- After a crash the manifest may name more objects than SQL; attaching compares them.
"""
