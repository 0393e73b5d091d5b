"""The consumer group protocol (KIP-848): one group's state machine.

The broker computes the target assignment, and each member's heartbeats move it there.
`heartbeat` and `removal` decide, `group` applies, `reconcile` moves one member, `assignors` and
`target` compute who is to have which partition, `subscription` what members subscribe to,
`conversion` converts a group with members from or to the classic protocol, `classic_members` has
the requests of members with that protocol. Pure.

Easy to get wrong:

- A heartbeat that changes nothing costs the same in a group of any size: no loop over members,
  partitions or topics.
- A partition belongs to the member that has it assigned or pending revocation. It is free only when
  the owner has confirmed that it no longer uses it.
- A member's epoch rises only after it has revoked what it must.
- Within the assignment interval nothing is computed and no timer runs: the next heartbeat of any
  member computes the target assignment.
"""
