"""The table of error codes against kio's, and the mapping from exceptions to codes."""

import pickle

import pytest
from kio.schema.errors import ErrorCode as KioCode

from kafkawire.codec.errors import ERRORS, ErrorCode, KafkaError, code_of


def test_codes_names_and_retriability_are_kafkas() -> None:
    theirs = {(int(e), e.name.upper(), e.retriable) for e in KioCode}
    assert {(row.code, row.name, row.retriable) for row in ERRORS} == theirs


def test_every_code_has_its_own_message() -> None:
    sentences = [row.sentence for row in ERRORS]
    assert all(s.endswith(".") for s in sentences)
    assert len(set(sentences)) == len(sentences)


def test_code_is_found_by_number() -> None:
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ValueError, match="4000"):
        ErrorCode(4000)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_COORDINATOR),
        (OSError(28, "No space left on device"), ErrorCode.KAFKA_STORAGE_ERROR),
        (TimeoutError(), ErrorCode.REQUEST_TIMED_OUT),
        (ZeroDivisionError(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_code_of_exception(error: BaseException, code: ErrorCode) -> None:
    assert code_of(error) is code


def test_error_message_is_its_own_or_that_of_its_code() -> None:
    assert str(KafkaError(ErrorCode.INVALID_CONFIG, "x is 3")) == "INVALID_CONFIG: x is 3"
    assert "acks must be" in str(KafkaError(ErrorCode.INVALID_REQUIRED_ACKS))


def test_error_can_be_pickled() -> None:
    error = KafkaError(ErrorCode.INVALID_RECORD, "no", [(2, "null key")])
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.message, again.record_errors) == (error.code, "no", [(2, "null key")])
