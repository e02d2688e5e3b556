"""What kernels of NCCL, RCCL and MSCCL are called, for every reader: one definition, as expressions and as patterns."""

from __future__ import annotations

_LIBRARIES = ("nccl", "rccl", "msccl")
"""RCCL calls most of its kernels as NCCL does; MSCCL's are in either."""
COMMUNICATION = rf"^(?:void )?(?:{'|'.join(_LIBRARIES)})"
"""A kernel of communication; demangled names of templates have their type before them."""
GLOBS = tuple(f"{before}{library}*" for before in ("", "void ") for library in _LIBRARIES)
"""The same as patterns of the shell."""
SENDS = r"(?i)SendRecv|(?:dev)?kernel_?Send"
"""What the name of a kernel contains that sends, receives or does both."""
GENERIC = r"(?i)Kernel_?Generic"
"""RCCL's kernel for most operations, which only the operation's name tells apart."""


def is_like(column: str, patterns: tuple[str, ...] = GLOBS) -> str:
    """The SQL condition that a column is like one of the patterns."""
    return "(" + " OR ".join(f"{column} GLOB '{pattern}'" for pattern in patterns) + ")"
