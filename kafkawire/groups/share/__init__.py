"""Share groups (KIP-932): one group's state machine.

The broker assigns partitions to members, several of them to each partition if need be, and an
assignment takes effect at once: members need not release anything first. `heartbeat` decides on
members, `initialization` on the states of share partitions, `offsets` on requests of operators;
`group` applies, `assignor` computes who reads which partition. Pure.

Easy to get wrong:

- Only a partition whose state is initialized is assigned. A share coordinator does that after the
  answer of the heartbeat that needs it, so a new group gets its partitions with a later heartbeat.
- Initialize and Delete of one share partition must not overtake each other: while states of a topic
  are being deleted, none of it are initialized.
- A heartbeat that changes nothing costs the same in a group of any size.
- A share group never expires, and never changes its protocol.
"""
