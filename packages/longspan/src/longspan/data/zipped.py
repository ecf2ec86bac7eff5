"""Exceptions raised for zip archives, and the compression methods that can be streamed."""

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
"""Exceptions of Python's zipfile for truncated, inconsistent or unsupported archives."""
PACKED = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Compression methods of Word files and books that Python can decompress as a stream."""
