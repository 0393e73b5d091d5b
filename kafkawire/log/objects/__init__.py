"""Log objects: copies of frames of the commit log that a broker stores in its tier before it
answers (durability=s3).

All objects that one life of a broker stores, in order of their sequence numbers, are its *log*. It
has no gaps: each object is stored at the next number, and only if there is none. A *fence* at the
next free number ends a log forever: the next life of the broker stores it before it continues, so
that an earlier process that is still running can store nothing more.

Easy to get wrong:

- The frames of an object come from any journals and positions, so their checksums are checked
  against the positions that they name themselves.
- An object without records of a partition does not name it: names are complete for the frames of
  the same object only.
- Only frames of batches are in objects. Topics are in SQL, and naming frames belong to a journal.
"""
