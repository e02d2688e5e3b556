"""The mark of every file that this program writes: a few bytes by which a later run knows that it may replace the file.

A mark counts only at its exact place in the head of the file, in the spelling of the writers here: a picture that
Inkscape saved again, or a table that pandas did, does not carry it any more. Parquet has it in the footer and PDF
before the last line. No more than the head or the end of a file is read.
"""

from __future__ import annotations

import os
import re
import stat
import zlib
from pathlib import Path
from typing import Final

from trace_export.files import GENERATOR, GZIP

ATTRIBUTES: Final[dict[str, str | int]] = {"generator": GENERATOR}
"""The first attributes of a trace."""

PARQUET_METADATA: Final = {"generator": GENERATOR}

HTML: Final = (
    f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{GENERATOR}">'
)
"""The first line of a page."""

SVG: Final = f"<!-- generator: {GENERATOR} -->"
"""Follows the opening tag of the picture."""

CSV: Final = '"rank",host,device,stage,step,kind,'
"""The start of the header. CSV has no comments, so the mark is that of all names only the first is quoted: RFC 4180
allows quotes around any field, and no CSV writer places them like this."""

APPLICATION_ID: Final = 0x7472_6578
"""Of a copied SQLite database: the characters "trex"."""

_ALIGNMENT: Final = b'{\n  "format": "trace_export clock alignment '
"""The start of the files that clocks/alignment_file.py writes."""

_BASELINE: Final = b'{\n  "format": "trace_export baseline '
"""The start of the files that analysis/baseline.py writes."""

STEP_LINE: Final = f'{{"generator":"{GENERATOR}","step":'
"""The start of each line that says something of a step."""

_HEAD_BYTES: Final = 4096
_END_BYTES: Final = 1 << 16
"""Enough for the metadata of a span table and what follows them, some 2 kB."""

_PNG_HEAD: Final = 33
"""Size of the signature and the chunk IHDR; other chunks may follow."""


def png_chunk() -> bytes:
    """The chunk tEXt that names this program (PNG specification, 11.3.4.3)."""
    data = b"tEXt" + f"Software\0{GENERATOR}".encode()
    return (len(data) - 4).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")


def marked_png(png: bytes) -> bytes:
    """The picture with the mark added."""
    return png[:_PNG_HEAD] + png_chunk() + png[_PNG_HEAD:]


_PDF_END: Final = b"\n%%EOF"
_PDF_MARK: Final = f"\n%generator: {GENERATOR}".encode() + _PDF_END
"""A comment may stand between the offset of the table of references and the last line (PDF 2.0, 7.2.4 and 7.5.5)."""


def marked_pdf(pdf: bytes) -> bytes:
    """The document with the mark added."""
    body, _, after = pdf.rstrip().rpartition(_PDF_END)
    assert body and not after, "a PDF ends in %%EOF"
    return body + _PDF_MARK


_VARINT: Final = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_PAIR: Final = b"\x0a\x19\x0a\x09generator\x1a\x0c" + GENERATOR.encode()  # TraceAttributes.attribute: key, string_value
_HEADS: Final = (
    rb"\x0a" + _VARINT + rb"\xf2\x07" + _VARINT + re.escape(_PAIR),  # Trace.packet, TracePacket.trace_attributes
    re.escape(f'{{"displayTimeUnit":"ns","metadata":{{"generator":"{GENERATOR}"'.encode()),
    rb"<svg [^<>]*>" + re.escape(SVG.encode()),
    re.escape(HTML.encode()),
    re.escape(CSV.encode()),
    re.escape(b"\x89PNG\r\n\x1a\n") + rb".{25}" + re.escape(png_chunk()),
    re.escape(b"SQLite format 3\0") + rb".{52}" + re.escape(APPLICATION_ID.to_bytes(4, "big")),
    re.escape(STEP_LINE.encode()),
    re.escape(_ALIGNMENT),
    re.escape(_BASELINE),
)
_MARKED_HEAD: Final = re.compile(b"|".join(_HEADS), re.DOTALL)
_FOOTER_PAIR: Final = b"\x18\x09generator\x18\x0c" + GENERATOR.encode() + b"\0"  # a KeyValue in compact Thrift


def is_marked(path: Path) -> bool:
    """Whether the file carries the mark. One that is not a regular file, or cannot be read, does not."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe by now would block
            head = file.read(_HEAD_BYTES)
            if head.startswith((b"PAR1", b"%PDF-")):
                file.seek(-min(_END_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
                end = file.read()
                return _FOOTER_PAIR in end if head.startswith(b"PAR1") else end.endswith(_PDF_MARK)
    except OSError:
        return False
    return _MARKED_HEAD.match(_unpacked(head)) is not None


def _unpacked(head: bytes) -> bytes:
    """The head of the file, decompressed if it is gzip data."""
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""
