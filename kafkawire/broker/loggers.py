"""Log levels as a resource that admin tools can read and change (KIP-412).

`kafka-configs --entity-type broker-loggers` speaks of log4j levels by logger name; here the names
are those of Python's loggers. As in Kafka, a change lasts until the process ends. Called by
DescribeConfigs and IncrementalAlterConfigs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kafkawire.broker.overrides import AlterConfigOp, Op
from kafkawire.codec.errors import ErrorCode, KafkaError

ROOT = "root"
# Kafka's names (LogLevelConfig); Python has no TRACE, and other names for FATAL and WARN.
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = {level: name for name, level in _LEVELS.items()}  # DEBUG overwrites TRACE


def levels() -> dict[str, str]:
    """Return the effective level of each logger."""
    found = {ROOT: _name(logging.getLogger().getEffectiveLevel())}
    for name, entry in sorted(logging.root.manager.loggerDict.items()):
        if isinstance(entry, logging.Logger):
            found[name] = _name(entry.getEffectiveLevel())
    return found


def alter(wishes: Sequence[AlterConfigOp], validate_only: bool) -> None:
    """Set or reset levels; all of them or, with a KafkaError, none."""
    known = levels()
    for name, op, value in wishes:
        if op not in (Op.SET, Op.DELETE):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{op.name} operation is not allowed for the BROKER_LOGGER resource",
            )
        if name not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
        if op is Op.SET and value not in _LEVELS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {name} to {value} as it is not a supported log "
                f"level. Valid log levels are {', '.join(sorted(_LEVELS))}",
            )
        if op is Op.DELETE and name == ROOT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Removing the log level of the {ROOT} logger is not "
                "allowed"
            )  # fmt: skip
    if validate_only:
        return
    for name, op, value in wishes:
        level = _LEVELS[value or ""] if op is Op.SET else logging.NOTSET
        logging.getLogger(None if name == ROOT else name).setLevel(level)


def _name(level: int) -> str:
    return next((name for at, name in sorted(_NAMES.items()) if level <= at), "FATAL")
