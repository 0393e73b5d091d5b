"""Child processes of the broker (the worker, the storage process) and their messages.

`frames` is the format of messages, `parent_end` starts, monitors and stops a child, `child_end`
initialises the child. kafkawire.log.io.worker_process and kafkawire.tiering.store.process define
the contents of messages and handle the death of a child.
"""
