"""Child processes of the broker and what they say to each other: the worker, the storage process.

`frames` is the format of messages, `parent_end` starts, watches and ends a child, `child_end` is
what a child does first. What is in a message, and what is done about a child that died, is the
business of kafkawire.log.io.worker_process and kafkawire.tiering.store.process.
"""
