"""Share partitions (KIP-932), the leader's side: which records which member has acquired.

Records of a share partition (a partition as one share group consumes it) are delivered to any
member, acknowledged one by one, and delivered again until their delivery count reaches a limit.
The leader of the partition decides it in memory and stores through the `persister` what must
survive it.
"""
