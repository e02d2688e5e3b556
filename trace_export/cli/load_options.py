"""From the options of a command line to `export.LoadOptions`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer

from trace_export.choices import Align, Detail
from trace_export.errors import UsageError, path_text
from trace_export.units import nanoseconds

if TYPE_CHECKING:
    from trace_export.export import LoadOptions
    from trace_export.workers.cluster import Cluster


def folder(positional: Path | None, option: Path | None, scheduler: str | None = None, at: Sequence[str] = ()) -> Path:
    """The one folder that was given; the current one where the profiles lie `at` the machines of a cluster.

    Raises UsageError for none or two.
    """
    if at and (positional or option):
        raise UsageError("both --at and a folder given", "--at says where the profiles lie; --out says where to write")
    if at and not scheduler:
        raise UsageError("--at needs --scheduler", "machines are those of a Dask cluster: --scheduler tcp://HOST:PORT")
    if at:
        return Path()
    if positional is not None and option is not None and positional != option:
        raise UsageError(f"two folders given, {positional} and {option}", "give one")
    chosen = option or positional
    if chosen is None:
        raise UsageError("no folder given", "name the folder that holds the profiles with --log_dir")
    return chosen


def offsets(texts: Sequence[str]) -> dict[str, int]:
    """`node1=+3.2ms` → {"node1": 3200000}. Raises UsageError."""
    result = {}
    for text in texts:
        host, equals, time = text.rpartition("=")
        if not equals or not host:
            raise UsageError(f'--offset "{text}" is not HOST=TIME', "write it like --offset node1=+3.2ms")
        result[path_text(host)] = nanoseconds(time, "--offset")
    return result


def from_command(ctx: typer.Context, family: str | None = None) -> LoadOptions:
    """The options of the command at hand, those that have a say in what is loaded."""
    known = signature(load_options).parameters
    given = {
        name: value for name, value in ctx.params.items() if name in known and name != "log_dir" and value is not None
    }
    place = folder(ctx.params["folder"], ctx.params["log_dir"], given.get("scheduler"), given.get("at") or ())
    return load_options(place, family=family, **given)


def load_options(
    log_dir: Path,
    *,
    family: str | None = None,
    devices: str = "all",
    multi_machine: bool = False,
    ranks: str = "all",
    steps: str = "all",
    stages: str = "all",
    time: str | None = None,
    pp: int | None = None,
    tp: int | None = None,
    dp: int | None = None,
    cp: int | None = None,
    host: bool = False,
    marker: Sequence[str] = (),
    detail: Detail = "spans",
    align: str = "auto",
    offset: Sequence[str] = (),
    max_clock_error: str | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    at: Sequence[str] = (),
    follow_links: bool = False,
) -> LoadOptions:
    """The options as the API takes them. Raises UsageError that names the option."""
    from trace_export.export import LoadOptions
    from trace_export.model import Declared
    from trace_export.selection import Numbers, Window
    from trace_export.sources.source import ReadOptions

    if align not in get_args(Align) and not Path(align).is_file():
        raise UsageError(
            f'--align "{align}": no such file', f"choose {', '.join(get_args(Align))}, or a clock_alignment.json"
        )
    return LoadOptions(
        log_dir=log_dir,
        family=family,
        devices=Numbers.parse(devices, "--devices"),
        multi_machine=multi_machine,
        steps=Numbers.parse(steps, "--steps"),
        stages=Numbers.parse(stages, "--stages"),
        window=Window.parse(time, "--time") if time else None,
        detail=detail,
        read=ReadOptions(
            host_ranges=host,
            ranks=Numbers.parse(ranks, "--ranks"),
            markers=tuple(marker),
        ),
        told=Declared(pp=pp, tp=tp, dp=dp, cp=cp),
        align=align,
        offsets=offsets(offset),
        max_clock_error_ns=nanoseconds(max_clock_error, "--max-clock-error") if max_clock_error else None,
        jobs=jobs,
        cluster=_cluster(scheduler, at) if scheduler else None,
        follow_links=follow_links,
    )


def _cluster(scheduler: str, at: Sequence[str]) -> Cluster:
    from trace_export.workers.cluster import Cluster

    return Cluster.parse(scheduler, at)
