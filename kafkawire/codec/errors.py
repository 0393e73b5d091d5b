"""Every error code of the Kafka protocol, and the one exception that carries a code.

The table is `ErrorCode` itself: code, name, whether a client may try again, and a sentence for
users. Names, numbers and the retriable column are Kafka's (`common.protocol.Errors` and its
exception classes, up to 4.4); the sentences are ours.

Not here: the choice of a code for a situation (made where the situation is detected), and its field
in a response (each message has its own). Used by all packages.
"""

from enum import IntEnum
from typing import NamedTuple


class ErrorCode(IntEnum):
    """A protocol error code; an int16 on the wire."""

    retriable: bool
    sentence: str

    def __new__(cls, code: int, retriable: bool = False, sentence: str = "") -> "ErrorCode":
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.sentence = sentence
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker met an error it did not expect."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset is below the log start or beyond the log end."
    CORRUPT_MESSAGE = 2, True, "The batch is damaged: its checksum or its sizes do not fit."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "There is no such topic or partition on this broker."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "Another broker leads this partition."
    REQUEST_TIMED_OUT = 7, True, "The request was not finished within its timeout."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available for this partition."
    MESSAGE_TOO_LARGE = 10, False, "The batch is larger than max.message.bytes allows."
    STALE_CONTROLLER_EPOCH = 11, False, "The controller has moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata string of the offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection ended before the response came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "There is no coordinator at the moment."
    NOT_COORDINATOR = 16, True, "Another broker coordinates this group or transaction."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not valid, or not open to this request."
    RECORD_LIST_TOO_LARGE = 18, False, "The batch is larger than a segment may be."
    NOT_ENOUGH_REPLICAS = 19, True, "Fewer replicas are in sync than min.insync.replicas asks."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Written, but on fewer replicas than required."
    INVALID_REQUIRED_ACKS = 21, False, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member shares no protocol with the group."
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The group does not know this member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the broker's bounds."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset to commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not allowed for this topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not allowed for this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not allowed for this cluster."
    INVALID_TIMESTAMP = 32, False, "A timestamp is outside the range the topic accepts."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The SASL mechanism is not enabled here."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, False, "This version of the request is not served."
    TOPIC_ALREADY_EXISTS = 36, False, "There is a topic of this name."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor does not fit the brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The assignment of replicas is not valid."
    INVALID_CONFIG = 40, False, "A setting has no such value, or there is no such setting."
    NOT_CONTROLLER = 41, True, "Another broker is the controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The message format does not allow this."
    POLICY_VIOLATION = 44, False, "A policy of the broker or topic forbids this."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The producer's sequence has a gap or runs back."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer's batch has been stored already."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is older than the one known."
    INVALID_TXN_STATE = 48, False, "The transaction is not in a state for this."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id is not that of the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is above the broker's bound."
    CONCURRENT_TRANSACTIONS = 51, True, "Another step of this transaction is still under way."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The transaction has a newer coordinator."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not allowed for this transactional id."
    SECURITY_DISABLED = 54, False, "The broker runs without this security feature."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not tried, because another part of the request failed."
    KAFKA_STORAGE_ERROR = (
        56,
        True,
        "Stored data cannot be read or written: a disk, database or bucket failed or is full.",
    )
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "The credentials were not accepted."
    UNKNOWN_PRODUCER_ID = 59, False, "Nothing is known any more of this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being moved."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The token belongs to another principal."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Tokens cannot be asked for on this channel."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not allowed for this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "The principal type is not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "There is no such fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The epoch of the fetch session is not the next one."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of that name."
    TOPIC_DELETION_DISABLED = 73, False, "Topics cannot be deleted here."
    FENCED_LEADER_EPOCH = 74, True, "The client's leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The client's leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The compression type is not supported here."
    STALE_BROKER_EPOCH = 77, False, "The broker's epoch is out of date."
    OFFSET_NOT_AVAILABLE = 78, True, "The new leader cannot give this offset safely yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id given here."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken this static instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that may lead is available."
    ELECTION_NOT_NEEDED = 84, True, "The wanted leader leads already."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is reading the topic of these offsets."
    INVALID_RECORD = 87, False, "A record is not valid, so its batch was refused."
    UNSTABLE_OFFSET_COMMIT = 88, True, "An open transaction holds offsets of this partition."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "A quota is used up."
    PRODUCER_FENCED = 90, False, "A newer producer has taken this transactional id."
    RESOURCE_NOT_FOUND = 91, False, "There is no such resource."
    DUPLICATE_RESOURCE = 92, False, "The request names one resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, False, "Sender or receiver is not among the voters."
    INVALID_UPDATE_VERSION = 95, False, "The version to update to is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The forwarded principal cannot be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "There is no topic of this id on this broker."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "Another broker uses this id."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker is registered under this id."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic has another id than the request says."
    INCONSISTENT_CLUSTER_ID = 104, False, "The cluster has another id than the request says."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes names and ids of topics."
    INELIGIBLE_REPLICA = 107, False, "A replica in the new in-sync set may not be in it."
    NEW_LEADER_ELECTED = 108, False, "Done, and the partition has a new leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is in the remote tier now."
    FENCED_MEMBER_EPOCH = 110, False, "The member is fenced: give up the partitions and rejoin."
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still uses this instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support this assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is out of date; try after a heartbeat."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request was meant for the other kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "This kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller of this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is not the current one."
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry is larger than the broker takes."
    INVALID_REGISTRATION = 119, False, "The broker's registration is not valid."
    TRANSACTION_ABORTABLE = 120, False, "The transaction failed; abort it and go on."
    INVALID_RECORD_STATE = 121, False, "The record is not in a state to be acknowledged so."
    SHARE_SESSION_NOT_FOUND = 122, True, "There is no such share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The epoch of the share session is not the next one."
    FENCED_STATE_EPOCH = 124, False, "The state epoch of the share group does not match."
    INVALID_VOTER_KEY = 125, False, "The voter key is not that of the receiver."
    DUPLICATE_VOTER = 126, False, "The voter is one already."
    VOTER_NOT_FOUND = 127, False, "The voter is not among the voters."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, False, "The client's metadata is of another cluster; start over."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The epoch of the topology is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The epoch of the topology is out of date."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "There are as many share sessions as there may be."


class ErrorRow(NamedTuple):
    """One row of the table of codes, for documentation and tools."""

    code: int
    name: str
    retriable: bool
    sentence: str


ERRORS: tuple[ErrorRow, ...] = tuple(
    ErrorRow(e.value, e.name, e.retriable, e.sentence) for e in ErrorCode
)


class KafkaError(Exception):
    """A request, or one item of it, failed with `code`.

    `message` is the sentence for the client if the response has a field for one; without it clients
    show their own text for the code. `record_errors` holds (index of the record in its batch,
    sentence) for a refused batch (KIP-467).
    """

    __slots__ = ("code", "message", "record_errors")

    def __init__(
        self,
        code: ErrorCode,
        message: str | None = None,
        record_errors: list[tuple[int, str]] | None = None,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.record_errors: list[tuple[int, str]] = record_errors or []

    def __reduce__(
        self,
    ) -> tuple[type["KafkaError"], tuple[ErrorCode, str | None, list[tuple[int, str]]]]:
        return type(self), (self.code, self.message, self.record_errors)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message or self.code.sentence}"


class DamagedOffsets(KafkaError):
    """Stored records are damaged: the requested offset and all up to `end`."""

    __slots__ = ("end",)

    def __init__(self, end: int, message: str) -> None:
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)
        self.end = end


class AbsentOffsets(DamagedOffsets):
    """Records are not at this broker: the requested offset and all up to `end` are, if anywhere, in
    journals of a broker that led the partition before."""

    __slots__ = ()

    def __init__(self, end: int, message: str) -> None:
        super().__init__(end, message)
        self.code = ErrorCode.KAFKA_STORAGE_ERROR


def code_of(error: BaseException) -> ErrorCode:
    """Return the code for `error`: its own, that of a timeout or the disk, else
    UNKNOWN_SERVER_ERROR."""
    if isinstance(error, KafkaError):
        return error.code
    if isinstance(error, TimeoutError):  # an OSError since Python 3.11, but no disk's
        return ErrorCode.REQUEST_TIMED_OUT
    if isinstance(error, OSError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.UNKNOWN_SERVER_ERROR
