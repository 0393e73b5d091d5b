"""A function over the Arrow batches of a DataFrame, in Spark's tasks: `DataFrame.mapInArrow`
without pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kafkawire_spark.source.worker_errors import hide_own_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def map_in_arrow(
    frame: DataFrame,
    work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    ddl: str,
) -> DataFrame:
    """Return a data frame with the results of `work`, of this schema, for the batches of each
    partition of `frame`. Its SourceErrors are reported without the traceback of the worker."""
    from pyspark.sql import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    def work_quietly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with hide_own_errors():
            yield from work(batches)

    # Spark's own function requires pandas, although its tasks do not use it, and importing pandas
    # takes half a second. So this calls the function below it.
    kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    called: Any = UserDefinedFunction(work_quietly, returnType=ddl, evalType=kind)
    column = called(*[frame[name] for name in frame.columns])
    plain: Any = frame
    return DataFrame(plain._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)
