"""The Produce path: decode without objects, append, answer after the write or the commit.

`handler` serves one request. If requests of a connection differ only in batch and partition,
`shape` compares the other bytes instead of decoding them, and `repeat` serves several such requests
at once. `long` serves what takes longer than one event-loop iteration.

Easy to get wrong:

- The batch that is written is the receive buffer itself, pinned until its write batch is written.
- A timestamp far in the future is found in the batch header alone while
  `message.timestamp.after.max.ms` has its default; other bounds require reading every record.
"""
