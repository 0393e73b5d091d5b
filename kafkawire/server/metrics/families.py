"""Constructors of the metric families that prometheus-client renders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from kafkawire.metric_counters import Histogram

MAX_SERIES = 1_000
"""Maximum series of one family with a series per partition. Prometheus keeps each for hours and
would not survive a million."""

Labelled = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, words: str, value: float) -> Metric:
    """Return a family with one gauge."""
    return GaugeMetricFamily(f"kafkawire_{name}", words, value)


def gauges(name: str, words: str, labels: Sequence[str], values: Labelled) -> Metric:
    """Return a family with a gauge for each tuple of labels."""
    family = GaugeMetricFamily(f"kafkawire_{name}", words, labels=labels)
    for texts, value in values:
        family.add_metric(texts, value)
    return family


def counter(name: str, words: str, value: float) -> Metric:
    """Return a family with one counter; `_total` is added to its name."""
    return CounterMetricFamily(f"kafkawire_{name}", words, value)


def counters(name: str, words: str, labels: Sequence[str], values: Labelled) -> Metric:
    """Return a family with a counter for each tuple of labels."""
    family = CounterMetricFamily(f"kafkawire_{name}", words, labels=labels)
    for texts, value in values:
        family.add_metric(texts, value)
    return family


def histogram(name: str, words: str, found: Histogram) -> Metric:
    """Return a family with one histogram."""
    return HistogramMetricFamily(
        f"kafkawire_{name}", words, buckets=found.buckets(), sum_value=found.total
    )


def histograms(name: str, words: str, label: str, found: Iterable[tuple[str, Histogram]]) -> Metric:
    """Return a family with a histogram for each value of a label."""
    family = HistogramMetricFamily(f"kafkawire_{name}", words, labels=[label])
    for text, one in found:
        family.add_metric([text], buckets=one.buckets(), sum_value=one.total)
    return family


def within_bound(values: Labelled) -> Labelled:
    """Return nothing if there are more than MAX_SERIES, because an incomplete family would
    mislead."""
    some = list(islice(values, MAX_SERIES + 1))
    return some if len(some) <= MAX_SERIES else []
