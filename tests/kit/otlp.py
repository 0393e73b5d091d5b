"""OpenTelemetry's metrics as a client sends them, written by protobuf itself.

Its classes are made from a description of the parts that a client uses, with the numbers of
opentelemetry/proto/metrics/v1/metrics.proto.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DOUBLE, FIXED64, INT64, STRING, MESSAGE, SFIXED64 = 1, 6, 3, 9, 11, 16  # FieldDescriptorProto.Type
_FIELDS: dict[str, list[tuple[str, int, int | str]]] = {
    "MetricsData": [("resource_metrics", 1, "ResourceMetrics")],
    "ResourceMetrics": [("resource", 1, "Resource"), ("scope_metrics", 2, "ScopeMetrics")],
    "Resource": [("attributes", 1, "KeyValue")],
    "KeyValue": [("key", 1, STRING), ("value", 2, "AnyValue")],
    "AnyValue": [("string_value", 1, STRING)],
    "ScopeMetrics": [("metrics", 2, "Metric"), ("schema_url", 3, STRING)],
    "Metric": [
        ("name", 1, STRING), ("description", 2, STRING), ("unit", 3, STRING),
        ("gauge", 5, "Gauge"), ("sum", 7, "Sum"),
    ],
    "Gauge": [("data_points", 1, "NumberDataPoint")],
    "Sum": [
        ("data_points", 1, "NumberDataPoint"), ("aggregation_temporality", 2, INT64),
    ],
    "NumberDataPoint": [
        ("start_time_unix_nano", 2, FIXED64), ("time_unix_nano", 3, FIXED64),
        ("as_double", 4, DOUBLE), ("as_int", 6, SFIXED64), ("attributes", 7, "KeyValue"),
    ],
}  # fmt: skip
_SINGLE = {"resource", "value", "gauge", "sum"}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number, label=1)
            if isinstance(kind, int):
                made.type = kind
            else:
                made.type, made.type_name = MESSAGE, f".t.{kind}"
                made.label = 1 if field in _SINGLE else 3  # a list
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"t.{name}") for name in _FIELDS}
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


_CLASSES = _classes()


def gauge(name: str, *values: float | int) -> Any:
    """A gauge with a data point for each value, as of several brokers."""
    points = [
        _CLASSES["NumberDataPoint"](
            time_unix_nano=1_700_000_000_000_000_000,
            attributes=[{"key": "node_id", "value": {"string_value": str(at)}}],
            **{"as_int" if isinstance(value, int) else "as_double": value},
        )
        for at, value in enumerate(values)
    ]
    return _CLASSES["Metric"](name=name, gauge={"data_points": points})


def counter(name: str, value: float) -> Any:
    points = [_CLASSES["NumberDataPoint"](as_double=value)]
    return _CLASSES["Metric"](name=name, sum={"data_points": points})


def metrics_data(*metrics: Any) -> bytes:
    """MetricsData with a ResourceMetrics for each metric, as the Java client has it."""
    label = {"key": "client_rack", "value": {"string_value": "rack"}}
    parts = [
        {"resource": {"attributes": [label]}, "scope_metrics": [{"metrics": [metric]}]}
        for metric in metrics
    ]
    encoded: bytes = _CLASSES["MetricsData"](resource_metrics=parts).SerializeToString()
    return encoded
