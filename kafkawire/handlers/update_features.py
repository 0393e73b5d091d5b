"""UpdateFeatures: change the finalized levels of transaction.version, group.version, share.version
and streams.version (KIP-584)."""

from __future__ import annotations

from kafkawire.broker.config_service import FAILURES, as_kafka_error
from kafkawire.codec.configs.features import FeatureUpdate, UpgradeType
from kafkawire.codec.errors import ErrorCode
from kafkawire.handlers.context import RequestContext
from kafkawire.messages.update_features import (
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

MAX_UPDATES = 100
"""Features in one request: they are checked without yielding to the event loop, and Kafka has
seven."""
NO_ERROR = "NONE"  # as Kafka's controller answers for each feature
TYPES_FROM = 1
NO_RESULTS_FROM = 2


async def update_features(
    ctx: RequestContext, req: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    """UpdateFeatures v0-2.

    v1 the kind of change (upgrade, safe or unsafe downgrade) and a dry run; v2 one error for all
    features. As in Apache Kafka 4.3, one refused feature refuses all of them, and v0 cannot lower a
    level: its allow_downgrade has no effect. A downgrade of each feature is safe, so both kinds
    are the same. Not done: the timeout, Kafka's other features, which belong
    to protocols that are not served (unknown features: INVALID_UPDATE_VERSION).
    """
    count = len(req.feature_updates)
    if count > MAX_UPDATES:
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"{count} features in one request; at most {MAX_UPDATES} are allowed.",
        )
    updates = [
        FeatureUpdate(
            update.feature,
            update.max_version_level,
            update.upgrade_type if ctx.version >= TYPES_FROM else UpgradeType.UPGRADE,
        )
        for update in req.feature_updates
    ]
    try:
        await ctx.broker.features.update(updates, req.validate_only)
    except FAILURES as failure:
        error = as_kafka_error(failure)
        return UpdateFeaturesResponse(
            error_code=error.code, error_message=error.message or error.code.sentence
        )
    for update in () if req.validate_only else updates:
        ctx.broker.security.audit.record_change(
            ctx.caller, "feature changed", feature=update.name, level=update.level
        )
    response = UpdateFeaturesResponse(error_message=None)
    if ctx.version < NO_RESULTS_FROM:
        response.results = [
            UpdatableFeatureResult(update.name, error_message=NO_ERROR) for update in updates
        ]
    return response
