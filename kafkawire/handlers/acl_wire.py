"""Access rules and filters of requests: their checks, in Kafka's order and with its texts.

Used by CreateAcls, DescribeAcls and DeleteAcls.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from kafkawire.codec.errors import ErrorCode, KafkaError
from kafkawire.handlers.context import MalformedRequest
from kafkawire.messages.create_acls import AclCreation
from kafkawire.messages.delete_acls import DeleteAclsFilter
from kafkawire.messages.describe_acls import DescribeAclsRequest
from kafkawire.security.acls.model import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)
from kafkawire.security.acls.service import fault_of
from kafkawire.security.principals import parse_principal

NO_AUTHORIZER = "No Authorizer is configured on the broker"  # as Kafka answers DescribeAcls
NO_AUTHORIZER_FOR_ITEM = "No Authorizer is configured."  # and each rule and filter of the others
UNKNOWN = 0
_E = TypeVar("_E", bound=IntEnum)


def decode_enum(kind: type[_E], code: int) -> _E:
    """Return the member with a code of the protocol; UNKNOWN for codes of newer versions."""
    try:
        return kind(code)
    except ValueError:
        return kind(UNKNOWN)


def refuse_zero(*codes: int) -> None:
    """Raise MalformedRequest if a code is 0, as Kafka does while it parses a request."""
    if UNKNOWN in codes:
        raise MalformedRequest("a rule or filter with the code 0, which stands for unknown")


def check_codes(asked: AclCreation) -> None:
    """Refuse a rule that Kafka does not parse."""
    refuse_zero(
        asked.resource_type, asked.resource_pattern_type, asked.operation, asked.permission_type
    )


def acl_of(asked: AclCreation) -> Acl:
    """Return the rule to be created. Raises KafkaError (AclApis, AclControlManager)."""
    resource = decode_enum(ResourceKind, asked.resource_type)
    pattern = decode_enum(PatternType, asked.resource_pattern_type)
    operation = decode_enum(Operation, asked.operation)
    permission = decode_enum(Permission, asked.permission_type)
    fault: str | None = None
    if resource is ResourceKind.CLUSTER and asked.resource_name != CLUSTER_NAME:
        fault = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not asked.resource_name:
        fault = "Invalid empty resource name"
    elif resource in (ResourceKind.UNKNOWN, ResourceKind.ANY):
        fault = f"Invalid resourceType {resource.name}"
    elif pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        fault = f"Invalid patternType {pattern.name}"
    elif operation in (Operation.UNKNOWN, Operation.ANY):
        fault = f"Invalid operation {operation.name}"
    elif permission not in (Permission.DENY, Permission.ALLOW):
        fault = f"Invalid permissionType {permission.name}"
    made = Acl(
        int(resource), asked.resource_name, int(pattern), asked.principal, asked.host,
        int(operation), int(permission),
    )  # fmt: skip
    if fault is None:
        try:
            parse_principal(asked.principal)
            fault = fault_of(made)
        except ValueError as wrong:
            fault = str(wrong)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
    return made


def filter_of(asked: DeleteAclsFilter | DescribeAclsRequest) -> AclFilter:
    """Return the filter of a request; codes of newer versions are UNKNOWN, which nothing is."""
    return AclFilter(
        decode_enum(ResourceKind, asked.resource_type_filter),
        asked.resource_name_filter,
        decode_enum(PatternType, asked.pattern_type_filter),
        asked.principal_filter,
        asked.host_filter,
        decode_enum(Operation, asked.operation),
        decode_enum(Permission, asked.permission_type),
    )


def check_filter_codes(asked: DeleteAclsFilter | DescribeAclsRequest) -> None:
    """Refuse a filter that Kafka does not parse."""
    refuse_zero(
        asked.resource_type_filter, asked.pattern_type_filter, asked.operation,
        asked.permission_type,
    )  # fmt: skip


def filter_fault(wanted: AclFilter) -> str | None:
    """Return why rules that a filter means cannot be deleted."""
    if UNKNOWN in (wanted.resource_type, wanted.pattern_type):
        return "Unknown patternFilter."
    if UNKNOWN in (wanted.operation, wanted.permission):
        return "Unknown entryFilter."
    return None
