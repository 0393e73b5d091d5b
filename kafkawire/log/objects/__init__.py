"""Log objects: copies of frames of the commit log that a broker stores in its tier before it
answers (durability=s3).

All objects that one life of a broker stores, in order of their sequence numbers, are its *log*. It
has no gaps: each object is stored at the next number, and only if there is none. A *fence* at the
next free number ends a log forever: the next life of the broker stores it before it continues, so
that an earlier process that is still running can store nothing more.

Easy to get wrong:

- Only frames of batches are in objects. Topics are in SQL, and naming frames belong to a journal.
"""
