"""Errors of S3 and boto3, as errors of the port."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

from botocore import exceptions as boto

from kafkawire.objectstore.calls import Cancelled
from kafkawire.objectstore.errors import (
    ConditionFailed,
    NoSuchObject,
    Refused,
    SlowDown,
    StoreError,
)

_SLOW = {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException",
         "TooManyRequests", "TooManyRequestsException", "RequestLimitExceeded",
         "RequestThrottled", "BandwidthLimitExceeded", "429", "503"}  # fmt: skip
_LATER = {"RequestTimeout", "RequestTimeoutException", "InternalError", "OperationAborted",
          "PriorRequestNotComplete", "408",
          # Bytes were damaged in transit, or another program aborted a multipart upload.
          "BadDigest", "InvalidDigest", "IncompleteBody", "XAmzContentSHA256Mismatch",
          "XAmzContentChecksumMismatch", "NoSuchUpload", "InvalidPart",
          # The object is truncated, but the storage works.
          "InvalidRange", "416"}  # fmt: skip
_OF_KMS = ("kms:", "KMS.")
"""Begin of codes about an encryption key. MinIO answers 404 if there is no such key."""
_REFUSED = (
    boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError,
    boto.ProfileNotFound, boto.ConfigParseError, boto.ConfigNotFound, boto.InvalidConfigError,
    boto.SSOError, boto.NoRegionError, boto.InvalidRegionError, boto.ParamValidationError,
    boto.EndpointProviderError, boto.SSLError, boto.InvalidProxiesConfigError,
    boto.InvalidRetryConfigurationError, boto.InvalidChecksumConfigError,
)  # fmt: skip
"""Errors found before a request was sent, which an operator must correct."""


def kind_of(status: int, code: str) -> type[StoreError]:
    """Return the kind of an error response from its HTTP status (0: unknown) and S3's code."""
    if code in _SLOW or status in (429, 503):
        return SlowDown
    if code in _LATER or status == 408:
        return StoreError
    if status == 412 or code in ("PreconditionFailed", "ConditionalRequestConflict"):
        return ConditionFailed
    if code == "NoSuchBucket" or status == 501:
        return Refused
    if status == 404:
        return Refused if code.startswith(_OF_KMS) else NoSuchObject
    return Refused if 300 <= status < 500 else StoreError


def failure_of(what: str, failure: BaseException) -> StoreError:
    """Return the failure of a request for `what`, a key or a bucket."""
    if isinstance(failure, StoreError):
        return failure
    if isinstance(failure, boto.ClientError):
        status, code, text = parts_of(failure)
        return kind_of(status, code)(code, f"{what}: {text or 'no reason was given'}")
    if isinstance(failure, concurrent.futures.CancelledError):
        return Cancelled()
    kind = Refused if isinstance(failure, _REFUSED) else StoreError
    return kind(type(failure).__name__, f"{what}: {failure}")


def parts_of(failure: boto.ClientError) -> tuple[int, str, str]:
    """Return (status, code, text) of an error response."""
    response: Any = failure.response
    error = response.get("Error", {})
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, str(error.get("Code", status)), str(error.get("Message", ""))


@contextlib.contextmanager
def translate_boto_errors(what: str, local: bool = False) -> Iterator[None]:
    """Convert errors of boto3 into StoreErrors. `local`: an OSError is a local file's and is not
    converted."""
    try:
        yield
    except (boto.BotoCoreError, boto.ClientError) as failure:
        raise failure_of(what, failure) from None
    except OSError as failure:
        if local:
            raise
        raise failure_of(what, failure) from None
    except (StoreError, ValueError):
        raise
    except Exception as failure:
        raise failure_of(what, failure) from None
