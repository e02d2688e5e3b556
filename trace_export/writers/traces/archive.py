"""A chart and the traces that it was made from in one file (.tar), which Perfetto opens as one.

A manifest in the archive says how the clocks of its files relate, which Perfetto 58 and later heeds. Format:
https://perfetto.dev/docs/reference/perfetto-manifest. The archive is in the ustar format, the only one that the trace
processor reads, and the files in it are not packed, because it refuses an archive inside an archive.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Any, Final

import orjson

from trace_export.chart.chart import Chart
from trace_export.errors import SourceError
from trace_export.files import Unpacked
from trace_export.scratch import scratch_folder
from trace_export.writers.mark import ARCHIVE_ATTRIBUTES, MANIFEST_NAME
from trace_export.writers.traces import perfetto

CHART: Final = "pipeline_profile.pftrace"
_CLOCK: Final = "BOOTTIME"
"""The clock of packets that name none, as those of the chart."""
_READ_BYTES: Final = 1 << 20
_LARGEST: Final = (8 << 30) - 1
"""What a header in ustar format can say of the size of a file, in bytes."""


@dataclass(frozen=True)
class Member:
    """A trace for the archive: its `name` there, the file it comes from, what Perfetto calls the `machine`, and what is
    added to its times to make them those of the chart. `clock`: the clock of its times by Perfetto's name; None where
    the format has none."""

    name: str
    path: Path
    machine: str
    offset_ns: int
    clock: str | None = None


def write(chart: Chart, path: Path, members: Sequence[Member]) -> None:
    """Writes the manifest, the chart, whose times count from the epoch, and the `members`, unpacked.

    Raises SourceError for a member that cannot be read or is too large, OSError as `open` does.
    """
    with path.open("w+b") as file, scratch_folder() as folder:
        _add(file, MANIFEST_NAME, [orjson.dumps(manifest(members))])
        drawn = folder / CHART
        perfetto.write(chart, drawn)
        _add(file, CHART, _content(drawn))
        for member in members:
            if _add(file, member.name, _content(member.path)) > _LARGEST:
                raise SourceError(member.path, "is larger than 8 GiB, and no file in a tar archive for Perfetto is")
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def manifest(members: Sequence[Member]) -> dict[str, Any]:
    """Puts all traces on the clock of the chart, and each on a machine of its own, because processes of several ranks
    have equal numbers."""
    files: list[dict[str, Any]] = [{"path": CHART}]
    for member in members:
        own = {} if member.clock is None else {"clock": member.clock}
        clocks = {**own, "sync_to": {"file": CHART, "clock": _CLOCK}, "offset_ns": member.offset_ns}
        files.append({"path": member.name, "machine": {"name": member.machine}, "clocks": clocks})
    content = {"version": 1, "attributes": ARCHIVE_ATTRIBUTES, "trace_time": {"clock": _CLOCK}, "files": files}
    return {"perfetto_manifest": content}


def _content(path: Path) -> Iterator[bytes]:
    try:
        with Unpacked(path) as file:
            while data := file.read(_READ_BYTES):
                yield data
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from error


def _add(file: BufferedRandom, name: str, content: Iterator[bytes] | list[bytes]) -> int:
    """Appends a file to the archive, whose header is written when the size is known; returns the size."""
    header, at = tarfile.TarInfo(name), file.tell()
    file.write(bytes(tarfile.BLOCKSIZE))
    for data in content:
        file.write(data)
        header.size += len(data)
    file.write(bytes(-header.size % tarfile.BLOCKSIZE))
    if header.size <= _LARGEST:
        file.seek(at)
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        file.seek(0, 2)
    return header.size
