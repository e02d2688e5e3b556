"""What several commands make of their options: the folder, the style of pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trace_export.errors import UsageError
from trace_export.options import Figure, Folder, options_of

if TYPE_CHECKING:
    from trace_export.api import FigureStyle


def one_folder(given: Folder) -> str | list[str] | None:
    """The folder or the files that were given by either spelling; None where each machine has its own (`--at`). Raises
    UsageError for no folder, and for two."""
    words, option = list(given["folder"]), given["log_dir"]
    if option is not None and words not in ([], [option]):
        if all(map(str.isdecimal, words)):
            what = f"{' '.join(words)} {'stand' if len(words) > 1 else 'stands'} alone"
            raise UsageError(what, "give several numbers as one list, such as --devices 0,1,2,3")
        raise UsageError(f"two folders given, {words[0]} and {option}", "give one")
    if not words and not option and not given.get("at"):
        raise UsageError("no folder is given", "name the folder that holds the profiles")
    return option or (words[0] if len(words) == 1 else words or None)


def style(given: Any) -> FigureStyle:
    """How pictures look, as the options say."""
    from trace_export.api import FigureStyle

    fields = {option.name.removeprefix("figure."): given[name] for name, option in options_of(Figure).items()}
    if given["no_legend"]:
        fields["legend"] = "none"
    return FigureStyle(**fields)
