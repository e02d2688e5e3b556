"""The connection to a Dask cluster: requests to its scheduler and workers with a time-out, and which workers it has."""

from __future__ import annotations

import hashlib
import logging
import platform
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import polars as pl

from trace_export.errors import TraceExportError, missing_extra

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
    """The workers in the order of their names, but those that are closing. Raises TraceExportError when one runs other
    code than this process."""
    workers = []
    for at, answer in ask(client.run, address, _describe, on_error="return").items():
        if isinstance(answer, OSError):
            continue
        if isinstance(answer, Exception):
            how = f"cannot run this program ({type(answer).__name__}: {answer})"
            raise TraceExportError(f"the Dask worker {at} {how}", SAME_CODE) from answer
        worker, theirs = Worker(*answer[0]), answer[1]
        if difference := differences(theirs):
            raise TraceExportError(f"the Dask worker {at} on {worker.host} has {difference}", SAME_CODE)
        workers.append(worker)
    return sorted(workers)


def _describe(dask_worker: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Plain objects, which other versions of this module understand too."""
    return (dask_worker.address, str(dask_worker.name), socket.gethostname(), dask_worker.ip), identity()


def host_of(address: str) -> str:
    """The host in the address of a worker, as Dask knows it."""
    return address.rpartition("://")[2].rpartition(":")[0].strip("[]")


@cache
def identity() -> dict[str, str]:
    """Which code this process runs: two may exchange tables and errors only if they run the same. Of Python the first
    two numbers, since a patch release changes no pickle."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    python = ".".join(platform.python_version_tuple()[:2])
    return {"trace_export": f"code {digest.hexdigest()[:12]}", "Python": python, "Polars": pl.__version__}


def differences(theirs: Mapping[str, str]) -> str:
    """What differs from the identity of this process, in words; empty where nothing does."""
    return ", ".join(
        f"{name} {theirs.get(name)} instead of {ours}" for name, ours in identity().items() if theirs.get(name) != ours
    )
