"""Users of SCRAM of a cluster (KIP-554)."""

from __future__ import annotations

from kafkawire.client.cluster import Cluster
from kafkawire.client.errors import check

DESCRIBE = 50


def list_scram_users(cluster: Cluster) -> dict[str, dict[int, int]]:
    """Return the iterations of each mechanism by its number, by user. BrokerError."""
    from kafkawire.messages.describe_user_scram_credentials import (
        DescribeUserScramCredentialsRequest,
    )

    answer = cluster.request(DESCRIBE, DescribeUserScramCredentialsRequest(None))
    check("users", answer.error_code, answer.error_message)
    return {
        row.user: {each.mechanism: each.iterations for each in row.credential_infos}
        for row in answer.results
    }
