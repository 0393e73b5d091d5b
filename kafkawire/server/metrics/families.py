"""Short words for making the families that prometheus-client renders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from kafkawire.codec.counts import Histogram

MAX_SERIES = 1_000
"""Series of one family that are about single partitions. Prometheus keeps each for hours: a million
partitions would be its end, not ours."""

Labelled = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, words: str, value: float) -> Metric:
    """One number that goes up and down."""
    return GaugeMetricFamily(f"kafkawire_{name}", words, value)


def gauges(name: str, words: str, labels: Sequence[str], values: Labelled) -> Metric:
    """A number for each tuple of labels."""
    family = GaugeMetricFamily(f"kafkawire_{name}", words, labels=labels)
    for texts, value in values:
        family.add_metric(texts, value)
    return family


def counter(name: str, words: str, value: float) -> Metric:
    """One number that only rises; `_total` is added to its name."""
    return CounterMetricFamily(f"kafkawire_{name}", words, value)


def counters(name: str, words: str, labels: Sequence[str], values: Labelled) -> Metric:
    """A rising number for each tuple of labels."""
    family = CounterMetricFamily(f"kafkawire_{name}", words, labels=labels)
    for texts, value in values:
        family.add_metric(texts, value)
    return family


def histogram(name: str, words: str, found: Histogram) -> Metric:
    """How values are spread."""
    return HistogramMetricFamily(
        f"kafkawire_{name}", words, buckets=found.buckets(), sum_value=found.total
    )


def histograms(name: str, words: str, label: str, found: Iterable[tuple[str, Histogram]]) -> Metric:
    """How values are spread, for each value of a label."""
    family = HistogramMetricFamily(f"kafkawire_{name}", words, labels=[label])
    for text, one in found:
        family.add_metric([text], buckets=one.buckets(), sum_value=one.total)
    return family


def within_bound(values: Labelled) -> Labelled:
    """Nothing at all if there are more than MAX_SERIES: half of them would mislead."""
    some = list(islice(values, MAX_SERIES + 1))
    return some if len(some) <= MAX_SERIES else []
