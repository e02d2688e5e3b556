"""The connection to a Dask cluster: requests to its scheduler and workers with a time-out, and which workers it has."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar

from trace_export.errors import TraceExportError, missing_extra
from trace_export.workers.identity import Identity, identity

CONNECT_S = 10
"""Time-out of connecting to the scheduler and of disconnecting."""
ANSWER_S = 30.0
"""Time-out of a request to the scheduler or the workers; a worker answers while it reads, too."""
LOGGERS: Final = ("distributed", "tornado", "asyncio")
"""Their messages repeat what the errors raised here say."""
SAME_CODE: Final = "install the same trace-export, Python and Polars on every worker as here"

Answer = TypeVar("Answer")


class Worker(NamedTuple):
    """Where a worker is. `name` is its address where it has no other."""

    address: str
    name: str
    host: str
    ip: str

    def is_called(self, machine: str) -> bool:
        return machine in (*self, self.host.partition(".")[0])


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """A Dask client. Raises TraceExportError when no scheduler answers, or it has no worker."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise missing_extra("`scheduler`", "dask") from error
    with _silenced():
        try:
            client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            remedy = "start one with `dask scheduler` and workers with `dask worker`"
            if address.startswith("tls:"):
                remedy = "certificates are those of Dask's configuration, see docs/dask.md"
            raise TraceExportError(f"{address}: no Dask scheduler answers there", remedy) from error
        try:
            if not ask(client.nthreads, address):
                raise TraceExportError(f"{address}: the Dask cluster has no worker", "start some with `dask worker`")
            yield client
        finally:
            with suppress(Exception):  # the scheduler may be gone
                client.close(timeout=CONNECT_S)


@contextmanager
def _silenced() -> Iterator[None]:
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in LOGGERS]
    loggers = [logger for logger in map(logging.getLogger, names) if not logger.disabled]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in loggers:
            logger.disabled = False


def ask(request: Callable[..., Answer], address: str, *arguments: object, **more: object) -> Answer:
    """What a method of the client returns. Raises TraceExportError when the cluster does not answer in time, or is
    gone."""
    try:
        return request(*arguments, **more, callback_timeout=ANSWER_S)
    except TimeoutError as error:
        what = f"{address}: the Dask cluster did not answer within {ANSWER_S:g} s"
        raise TraceExportError(what, "its scheduler or a worker is stopped or hangs; end that one") from error
    except Exception as error:
        raise gone(address) from error


def gone(address: str) -> TraceExportError:
    """The error of a scheduler whose connection broke."""
    what = f"{address}: the connection to the Dask scheduler broke while profiles were read"
    return TraceExportError(what, "start the scheduler and its workers again")


def same_workers(client: Any, address: str) -> list[Worker]:
    """The workers in the order of their names. Raises TraceExportError when one runs other code than this process."""
    workers = []
    for at, answer in _answers(client, address).items():
        if isinstance(answer, Exception):
            how = f"cannot run this program ({type(answer).__name__}: {answer})"
            raise TraceExportError(f"the Dask worker {at} {how}", SAME_CODE) from answer
        worker, theirs = answer
        if difference := identity().differences(theirs):
            raise TraceExportError(f"the Dask worker {at} on {worker.host} has {difference}", SAME_CODE)
        workers.append(worker)
    return sorted(workers)


def usable_workers(client: Any, address: str) -> list[Worker]:
    """Those that run the same code as this process."""
    answers = [answer for answer in _answers(client, address).values() if not isinstance(answer, Exception)]
    return sorted(worker for worker, theirs in answers if not identity().differences(theirs))


def _answers(client: Any, address: str) -> dict[str, tuple[Worker, Identity] | Exception]:
    """The place and code of each worker, or the error of finding out, by address; workers that are closing are left
    out."""
    answers: dict[str, Any] = ask(client.run, address, _describe, on_error="return")
    of_workers: dict[str, tuple[Worker, Identity] | Exception] = {}
    for at, answer in answers.items():
        if isinstance(answer, OSError):
            continue
        try:
            of_workers[at] = answer if isinstance(answer, Exception) else (Worker(*answer[0]), Identity(*answer[1]))
        except (TypeError, ValueError, IndexError) as error:  # of other code
            of_workers[at] = error
    return of_workers


def _describe(dask_worker: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Plain tuples, which other versions of this module understand too."""
    where = dask_worker.address, str(dask_worker.name), socket.gethostname(), dask_worker.ip
    return where, tuple(identity())
