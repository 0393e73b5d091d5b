"""Errors of the data source as one sentence, where Spark would show the traceback of its worker."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from kafkawire.reading.model.source import SourceError

Decorated = TypeVar("Decorated", bound=type[Any])
HIDE = "SPARK_HIDE_TRACEBACK"


def hide_traceback(decorated: Decorated) -> Decorated:
    """Decorate a class whose public methods are called by Spark's workers."""
    for name, method in list(vars(decorated).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(decorated, name, _wrap_method(method))
    return decorated


def worker_module() -> str:
    """Return the module that a Python worker of Spark runs; "" in any other process."""
    main = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    run = sys.argv[1] if main.endswith(".daemon") and len(sys.argv) > 1 else main
    return run if run.startswith("pyspark.") else ""


@contextmanager
def hide_own_errors() -> Iterator[None]:
    """Let Spark report a SourceError without its traceback."""
    try:
        yield
    except SourceError:
        # Spark formats the exception in the worker process that raised it, with this variable only
        # its class and text, and then ends the process. So no other error is affected: a bug keeps
        # its traceback.
        if worker_module():
            os.environ[HIDE] = "1"
        raise


def _wrap_method(method: Any) -> Any:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with hide_own_errors():
                yield from method(*args, **kwargs)

        return generate

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with hide_own_errors():
            return method(*args, **kwargs)

    return call
