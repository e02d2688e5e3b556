"""What users pass, checked and converted: the parts that the declarations of `options` are made of.

Each function takes the value and the name of its parameter, and raises UsageError with what the parameter accepts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import index
from pathlib import Path
from reprlib import Repr
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from trace_export import units
from trace_export.choices import Align, RunChoice
from trace_export.errors import UsageError, about, path_text
from trace_export.files import is_file, is_folder
from trace_export.progress import Progress, silent
from trace_export.units import LIMIT_NS, duration

if TYPE_CHECKING:
    from trace_export.model import Declared
    from trace_export.selection import Numbers, Window

NumberSet = str | int | Iterable[int] | None
"""A set of whole numbers: "0,2-4", 3, range(2, 5) or [0, 2]; None and "all" do not restrict anything."""

Inputs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""What is read: a folder, a file, or several files."""

LARGEST = 999_999_999
"""Of the numbers that users may give; their columns are Int32."""
TABLES = (".parquet", ".csv", ".tsv")
"""Files that may be span tables: they are read by themselves."""
LONGEST_TEXT = 300
"""A longer text than most paths are is shortened in an error message."""
_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 60


def shown(value: object) -> str:
    """A value in an error message: at most a line, whatever it is."""
    try:
        whole = isinstance(value, str | os.PathLike) and len(str(value)) <= LONGEST_TEXT
        return f'"{value}"' if whole else _REPR.repr(value)
    except ValueError:  # more digits than Python prints
        return f"this {type(value).__name__}"


def wrong(parameter: str, value: object, what: str) -> UsageError:
    """The error of a value that is not what the parameter takes."""
    return UsageError(f"{shown(value)} is not {what}", parameter=parameter)


Checked = TypeVar("Checked")


def optional(check: Callable[[Any, str], Checked]) -> Callable[[object, str], Checked | None]:
    """The check of a value that may be None."""
    return lambda value, parameter: None if value is None else check(value, parameter)


def choice(value: object, parameter: str, words: Any) -> Any:
    """One of `words`, a Literal or a sequence."""
    return word(value, parameter, get_args(words) or words)


def word(value: object, parameter: str, words: Sequence[str]) -> str:
    """One of `words`."""
    if not isinstance(value, str) or value not in words:
        raise UsageError(f"{shown(value)} is unknown", f"choose from {', '.join(words)}", parameter=parameter)
    return value


def choices(value: object, parameter: str, words: Any) -> tuple[Any, ...]:
    """One or more of `words`, as in `choice`, each once: "svg,png" or ["svg", "png"]."""
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else _items(value, parameter)
    if not items:
        raise UsageError("names nothing", f"choose from {', '.join(get_args(words) or words)}", parameter=parameter)
    return tuple(dict.fromkeys(choice(item, parameter, words) for item in items))


def flag(value: object, parameter: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(parameter, value, "True or False")
    return value


flag_or_none = optional(flag)


def whole(value: object, parameter: str, least: int = 1) -> int:
    """A whole number from `least`."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise wrong(parameter, value, "a whole number") from None
    if isinstance(value, bool) or not least <= number <= LARGEST:
        raise wrong(parameter, value, f"a whole number from {least} to {LARGEST}")
    return number


def whole_of_text(text: str, parameter: str) -> int:
    """The whole number that somebody typed; whether it is in range is checked afterwards."""
    if not re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text):
        raise UsageError(f"{shown(text)} is not a whole number", parameter=parameter)
    return int(text)


def fraction_of_text(text: str, parameter: str) -> float:
    """The decimal number that somebody typed."""
    if not re.fullmatch(r"\s*[+-]?\d{1,18}(\.\d*)?\s*", text):
        raise UsageError(f"{shown(text)} is not a number", parameter=parameter)
    return float(text)


def run_choice(value: object, parameter: str) -> RunChoice:
    """A run: its number from 1, "latest" or "all"."""
    if isinstance(value, str):
        text = value.strip()
        if text in ("latest", "all"):
            return text  # type: ignore[return-value]
        if not re.fullmatch(r"0*[1-9]\d{0,8}", text):
            raise UsageError(f"{shown(value)} is not a run", "give its number, latest or all", parameter=parameter)
        return int(text)
    return whole(value, parameter)


whole_or_none = optional(whole)


def zero_or_one(value: object, parameter: str) -> int:
    if value not in (0, 1) or isinstance(value, bool | float):
        raise wrong(parameter, value, "0 or 1")
    return index(value)


def number(value: object, parameter: str, what: str = "a number", *, negative: bool = False) -> float:
    """A number of at most units.LIMIT_NS either way."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(parameter, value, what)
    if value < 0 and not negative:
        raise UsageError(f"{shown(value)} is negative", parameter=parameter)
    if not abs(value) < LIMIT_NS:  # nor NaN
        raise UsageError(f"{shown(value)} is too large", parameter=parameter)
    return value


def share(value: object, parameter: str) -> float:
    """A share such as "3%" or 0.03."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d+)?)\s*%\s*", value)
        if match is None:
            raise UsageError(f"{shown(value)} is not a percentage", "write it like 3%", parameter=parameter)
        return float(match[1]) / 100
    return number(value, parameter, "a share such as 0.03")


def nanoseconds(value: object, parameter: str, *, negative: bool = False) -> float:
    """A time in nanoseconds."""
    if not negative and isinstance(value, int | float) and -LIMIT_NS < value < 0:
        raise UsageError(f"{duration(value)} is negative, which a duration cannot be", parameter=parameter)
    return number(value, parameter, "a number of nanoseconds", negative=negative)


def numbers(value: object, parameter: str) -> Numbers | None:
    """A set as `NumberSet` says; None for all."""
    from trace_export.selection import Numbers

    if value is None or isinstance(value, Numbers):
        return value
    if isinstance(value, str):
        return Numbers.parse(value, parameter)
    if isinstance(value, range) and value.step == 1 and value:
        return Numbers(((whole(value[0], parameter, 0), whole(value[-1], parameter, 0)),))
    items = _items(value, parameter) if isinstance(value, Iterable) else [value]
    if not items:
        raise UsageError("names no number", "leave it out to have all", parameter=parameter)
    return Numbers.of(whole(item, parameter, 0) for item in items)


def pair(value: object, parameter: str) -> tuple[int, int]:
    """Two whole numbers."""
    items = _items(value, parameter)
    if len(items) != 2:
        raise wrong(parameter, value, "a pair of whole numbers")
    return whole(items[0], parameter, 0), whole(items[1], parameter, 0)


def window(value: object, parameter: str) -> Window | None:
    """A part of the time: "1.5s-2.0s" or a Window."""
    from trace_export.selection import Window

    if isinstance(value, str):
        return Window.parse(value, parameter)
    if value is None:
        return None
    if not isinstance(value, Window):
        raise wrong(parameter, value, 'a window of time such as "1.5s-2.0s"')
    start, end = (nanoseconds(time, parameter, negative=True) for time in (value.start_ns, value.end_ns))
    return Window(round(start), round(end)).checked(parameter)


def path(value: object, parameter: str) -> Path:
    """A path of the file system; that something lies there is checked where it is used."""
    try:
        text = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        raise wrong(parameter, value, "a path") from None
    if not isinstance(text, str) or "\0" in text or not text:
        raise wrong(parameter, value, "a path")
    return Path(text)


def file_or_none(value: object, parameter: str) -> Path | None:
    """The path of a file that is there."""
    file = path_or_none(value, parameter)
    if file is not None and not is_file(file):
        raise UsageError(f"{file} is not a file", parameter=parameter)
    return file


path_or_none = optional(path)


def folder(value: object, parameter: str) -> Path:
    """The path of what is to be read."""
    if value is None:
        raise UsageError("no folder is given", "name the folder that holds the profiles", parameter=parameter)
    return path(value, parameter)


def folder_and_files(value: object, parameter: str, *, table: bool = False) -> tuple[Path, tuple[Path, ...]]:
    """The folder to read, and the files in it if not all that lies there is wanted: of a folder itself and no files, of
    files the folder that contains them all. A table of spans is given as it is; `table`: any single file is one."""
    if not isinstance(value, list | tuple):
        one = folder(value, parameter)
        return (one, ()) if table or one.suffix in TABLES or not is_file(one) else (one.parent, (one,))
    files = [path(item, parameter) for item in _items(value, parameter)]
    if not files:
        return folder(None, parameter), ()
    if len(files) == 1:
        return folder_and_files(files[0], parameter, table=table)
    for file in files:
        if not is_file(file):
            what = "is a folder" if is_folder(file) else "no such file"
            remedy = "give one folder, such as the one above several, or any number of files"
            raise UsageError(about(file, what), remedy)
    common = Path(os.path.commonpath([file.absolute().parent for file in files]))
    return common, tuple(file.absolute() for file in files)


def texts(value: object, parameter: str) -> tuple[str, ...]:
    """One text or several."""
    items = [value] if isinstance(value, str) else _items(value, parameter)
    for item in items:
        if not isinstance(item, str):
            raise wrong(parameter, item, "a text")
    return tuple(items)


def text(what: str = "a text") -> Callable[[object, str], str | None]:
    """The check of a text that may be None, and that an error calls `what`."""
    return optional(partial(instance, kind=str, what=what))


def times_by_name(value: object, parameter: str) -> dict[str, int]:
    """Names with a time in nanoseconds each; None stands for no name."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong(parameter, value, "a mapping of names to nanoseconds")
    for name in value:
        if not isinstance(name, str):
            raise wrong(parameter, name, "a name")
    return {name: round(nanoseconds(time, parameter, negative=True)) for name, time in value.items()}


def offsets_of_texts(texts: Sequence[str], parameter: str) -> dict[str, int]:
    """`node1=+3.2ms` → {"node1": 3200000}."""
    result = {}
    for text in texts:
        host, equals, time = text.rpartition("=")
        if not equals or not host:
            raise UsageError(f"{shown(text)} is not HOST=TIME", "write it like node1=+3.2ms", parameter=parameter)
        result[path_text(host)] = units.nanoseconds(time, parameter)
    return result


def alignment(value: object, parameter: str) -> Align | Path:
    """A way to align clocks, or the path of a file of clocks."""
    words = get_args(Align)
    if isinstance(value, str) and value in words:
        return value  # type: ignore[return-value]
    remedy = f"choose {', '.join(words)}, or the path of a clock_alignment.json"
    try:
        file = path(value, parameter)
        there = file.is_file()
    except (UsageError, OSError):
        there = False
    if not there:
        raise UsageError(f"{shown(value)} is unknown, and there is no such file", remedy, parameter=parameter)
    return file


def what_is_judged(value: object, parameter: str) -> str:
    """What must not be worse in a comparison: step, bubble, slowdown or stage:N."""
    text: str = instance(value, parameter, str, "step, bubble, slowdown or stage:N")
    if not re.fullmatch(r"step|bubble|slowdown|stage:\d{1,9}", text):
        raise UsageError(
            f"{shown(value)} is unknown", "choose from step, bubble, slowdown, stage:N", parameter=parameter
        )
    return text


def instance(value: object, parameter: str, kind: type | tuple[type, ...], what: str) -> Any:
    """An object of `kind`."""
    if not isinstance(value, kind):
        raise wrong(parameter, value, what)
    return value


def declared(value: object, parameter: str) -> Declared:
    """What the user declares, each fact checked."""
    from trace_export.model import Declared, RankOrder

    checks: dict[str, Callable[[object, str], object]] = {
        "schedule": lambda fact, name: instance(fact, name, str, "the name of a schedule"),
        "placement": partial(choice, words=Literal["loop", "vee"]),
        "rank_order": partial(choice, words=RankOrder),
        "numbers_continue": flag,
        "overlapped": flag,
        "steps": pair,
        "every_operation": flag,
        "step_zeros": lambda fact, name: instance(fact, name, tuple, "pairs of a step and a time"),
    }  # all others are whole numbers
    made: Declared = instance(Declared() if value is None else value, parameter, Declared, "of the type Declared")
    for name, fact in vars(made).items():
        if fact is not None:
            checks.get(name, whole)(fact, f"{parameter}.{name}")
    return made


def progress(value: object, parameter: str) -> Progress:
    """A function to call with what is being done, how much of it is done, and out of how much; None: nobody is told."""
    if value is not None and not callable(value):
        raise wrong(parameter, value, "a function")
    return value or silent


def _items(value: object, parameter: str) -> list[Any]:
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise wrong(parameter, value, "a list")
    return list(value)
