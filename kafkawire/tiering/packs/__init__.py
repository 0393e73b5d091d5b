"""Filter packs: the key filters of many objects in one, for searches by key without a broker.

`packer` writes a pack of each 64 objects with key indexes and drops packs that are hardly needed;
`stored_list` has the list of packs in the bucket. A pack states facts about objects that never
change (kafkawire.codec.segment.filter_pack), and readers do without it, so it is written after the
manifest, by one broker or by several, and no other step waits for it.

Easy to get wrong:

- A pack has a number that the list gave before. What a crash left under it is replaced, so nothing
  is left over without a listing of the bucket.
- Objects of a pack may be gone: readers only ask for those that the manifest names.
"""
