"""Failures of requests as a status and a sentence, of pages and of the API."""

from __future__ import annotations

from kafkawire.client.errors import BrokerError, ClientError
from kafkawire.client.notation import OptionError
from kafkawire.codec.errors import ErrorCode
from kafkawire.console.views.actions import Outdated
from kafkawire.console.views.plans import ChangeRefused, NotAllowed
from kafkawire.console.views.produce import ProducerBusy
from kafkawire.console.web.queries import WrongInput
from kafkawire.console.web.security import BodyTooLarge
from kafkawire.console.web.sessions import WrongToken

STATUSES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.UNKNOWN_MEMBER_ID: 409,  # a group that is reset has members
    ErrorCode.NON_EMPTY_GROUP: 409,
    ErrorCode.MESSAGE_TOO_LARGE: 413,
    ErrorCode.RECORD_LIST_TOO_LARGE: 413,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 400,
    ErrorCode.INVALID_GROUP_ID: 400,
    ErrorCode.INVALID_PARTITIONS: 400,
    ErrorCode.INVALID_CONFIG: 400,
    ErrorCode.INVALID_RECORD: 400,
    ErrorCode.INVALID_TIMESTAMP: 400,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.POLICY_VIOLATION: 400,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: 429,
}
"""Statuses of the broker's errors; of others: 502."""
WRONG_REQUESTS: dict[type[Exception], int] = {
    WrongInput: 400,
    OptionError: 400,
    WrongToken: 403,
    NotAllowed: 403,
    Outdated: 409,
    BodyTooLarge: 413,
    ProducerBusy: 503,
}
FAILURES: tuple[type[Exception], ...] = (ClientError, ChangeRefused, *WRONG_REQUESTS)
"""Failures whose text is a sentence for the user."""
HIDDEN = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED)


def status_of(code: int) -> int:
    """Return the status for an error of the broker."""
    return STATUSES.get(ErrorCode(code), 502) if code in set(ErrorCode) else 502


def explain_failure(failure: Exception, hide: bool) -> tuple[int, str]:
    """Return status and sentence for one of FAILURES. `hide`: what a user may not see
    does not exist."""
    status = WRONG_REQUESTS.get(type(failure), 502)
    if isinstance(failure, ChangeRefused):
        status = failure.status
    elif isinstance(failure, BrokerError):
        status = status_of(failure.code)
        if hide and (status == 404 or failure.code in HIDDEN):
            return 404, "There is no such topic or group."
    return status, f"{str(failure).rstrip('.')}."
