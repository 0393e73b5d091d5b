"""Log objects of a broker with a remote tier (durability=s3): their stores when it starts, and the
check of the storage before topics are created that need it."""
