"""What reading a zip archive raises, and which archives can be read a piece at a time."""

from __future__ import annotations

import struct
import zipfile
import zlib

DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,  # NotImplementedError is one of these
)
"""What Python's zipfile raises where an archive breaks off, contradicts itself or is packed in a way it cannot read."""
PACKED = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""The ways in which Word files and books may be packed, and of which Python can unpack a piece at a time."""
