"""The wanted events of a trace of torch.profiler, as columns.

Decoding them with msgspec takes, measured on a trace of 54 MB, a third of the time of orjson, and less than Polars'
JSON reader takes for the kernels of that trace alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import polars as pl

from trace_export.sources.kineto import heads
from trace_export.sources.shared import chrome_json
from trace_export.sources.shared.chrome_json import Events, Value, numbers, texts
from trace_export.sources.shared.timestamps import NO_TIME_NS

NUMBERS = (
    "correlation", "External id", "Src Rank", "Dst Rank", "Seq", "In msg nelems", "Out msg nelems", "Sequence number"
)  # fmt: skip
TEXTS = ("stream", "device", "Collective name", "Process Group Name", "dtype", "args name")
"""The fields of an event's `args` that are read: the columns of Int64, and those of String. `args name` is the `name`
of a thread."""
SCHEMA = (
    dict.fromkeys(("cat", "name", "pid", "tid"), pl.String())
    | dict.fromkeys(("start", "end", *NUMBERS), pl.Int64())
    | dict.fromkeys(TEXTS, pl.String())
)
"""The columns of events. Times are ns, both NO_TIME_NS where they cannot be read."""
THREAD_NAME = "thread_name"
"""The name of the events that name threads, and their category in a frame."""
FRAME = "python_function"
"""The category of the frames of Python (`with_stack`), which only rules of the user call passes."""
COMMON_CATEGORIES = {
    "Kernel": "kernel", "Memcpy": "gpu_memcpy", "Memset": "gpu_memset", "Runtime": "cuda_runtime",
    "Operator": "user_annotation", "mtia_ccp_events": "kernel", "mlu_memcpy": "gpu_memcpy", "mlu_memset": "gpu_memset",
    "GCU_MEMCPY": "gpu_memcpy", "GCU_MEMSET": "gpu_memset",
}  # fmt: skip
"""Categories of 2021 (PyTorch 1.8 and 1.9), which had one for operators and annotations, and of devices that have their
own, as those of CUDA today. ROCm, XPU and the devices of PrivateUse1 (NPU, HPU) share CUDA's `kernel` and
`gpu_mem…`."""

CLOCK_AND_RANK = frozenset({"baseTimeNanoseconds", "distributedInfo"})
"""Fields for which the end of a trace is read where its begin lacks them."""
_MOST_CATEGORIES = 1000


_Arguments = chrome_json.arguments(*NUMBERS, *TEXTS[:-1], "name")


class Event(chrome_json.Event, gc=False):
    """An event as it is written, with its category and arguments."""

    cat: Value = None
    args: _Arguments | None = None  # type: ignore[valid-type]


_NO_ARGUMENTS = _Arguments()


@dataclass(frozen=True)
class Wanted:
    """Complete events (`ph` X) whose category `categories` matches, a regular expression, or whose name begins with
    `marks`; with `threads` also the names of threads."""

    categories: str
    marks: str | None = None
    threads: bool = False

    @cached_property
    def events(self) -> Events[Event]:
        """How they are read."""
        shorten = partial(heads.without_others, wanted=self)
        return Events(Event, self.of, self._text, shorten, CLOCK_AND_RANK)

    @property
    def _text(self) -> str:
        """The text of each of them contains this."""
        parts = [rf'"cat"\s*:\s*"(?:{self.categories})"']
        if self.marks is not None:
            parts.append(rf'"name"\s*:\s*"{self.marks}')
        if self.threads:
            parts.append(f'"{THREAD_NAME}"')
        return "|".join(parts)

    @cached_property
    def common(self) -> Callable[[Value], str | None]:
        """Category in the file → the common one, None where it is not wanted."""
        wanted = re.compile(self.categories)

        def common(category: Value) -> str | None:
            if isinstance(category, str) and wanted.fullmatch(category):
                return COMMON_CATEGORIES.get(category, category)
            return None

        return lru_cache(_MOST_CATEGORIES)(common)

    def of(self, events: Sequence[Event]) -> list[Event]:
        """The wanted ones among `events`, with their common categories."""
        common, kept = self.common, []
        for event in events:
            if event.ph == "X":
                category = common(event.cat) or self._category_of_mark(event)
            else:
                category = THREAD_NAME if self.threads and event.ph == "M" and event.name == THREAD_NAME else None
            if category is not None:
                event.cat = category
                kept.append(event)
        return kept

    def _category_of_mark(self, event: Event) -> Value:
        marked = self.marks is not None and isinstance(event.name, str) and event.name.startswith(self.marks)
        return event.cat if marked else None


def whole_number(value: object) -> int | None:
    """A number of the header, which other programs write as text where it does not fit a float, or as a float; None for
    others."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value):
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 63:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def columns_of(events: Sequence[Event]) -> pl.DataFrame:
    """`events` with the columns of `SCHEMA`."""
    columns = chrome_json.texts_of(events, "cat", "name", "pid", "tid")
    for name, values in zip(NUMBERS + TEXTS, chrome_json.argument_columns(events, _NO_ARGUMENTS), strict=True):
        columns.append(texts(name, values) if name in TEXTS else numbers(name, values, pl.Int64))
    ends = chrome_json.times(events)
    timed = pl.col("end").is_not_null()
    ends = ends.select(pl.when(timed).then(c).otherwise(NO_TIME_NS).alias(c) for c in ("start", "end"))
    return pl.DataFrame([*columns, *ends]).with_columns(pl.col("name").fill_null("")).select(*SCHEMA)


def thread() -> pl.Expr:
    """Of events: threads are numbers, or names that are only compared."""
    tid = pl.col("tid").fill_null("")
    return pl.coalesce(tid.cast(pl.Int64, strict=False), -(tid.hash() // 2).cast(pl.Int64)).alias("thread")
