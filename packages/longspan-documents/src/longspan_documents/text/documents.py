"""Decoding of text files."""

from __future__ import annotations

import codecs
import re

from longspan.characters import on_one_line
from longspan.errors import InputError
from longspan.settings import check_kind

ENOUGH = 60
"""Minimum bytes for guessing an encoding, for the remedy in an error."""
COMMON_ENCODINGS = ("cp1252", "cp1250", "cp1251", "koi8_r", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874")
COMMON_ENCODINGS += ("shift_jis", "euc_jp", "gb18030", "big5", "euc_kr", "utf_16_le", "utf_16_be")

SAVE = "save the document as .txt, .md, .html, .docx, .odt, .rtf, .epub or .pdf"
"""The remedy for unsupported files: supported formats that most programs can save."""

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is a prefix
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NOT_OF_FILES = frozenset({"undefined", "punycode", "idna", "unicode_escape", "raw_unicode_escape"})
"""Python codecs that decode bytes but are not encodings of files."""
_NOT_WINDOWS = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
_DECLARED = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]{1,40})", re.IGNORECASE)
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_LABELS = {
    "iso_8859_8_i": "iso-8859-8",
    "ks_c_5601_1987": "cp949",
    "windows_31j": "cp932",
    "windows_874": "cp874",
    "x_euc_jp": "euc-jp",
    "x_gbk": "gb18030",
    "x_mac_cyrillic": "mac-cyrillic",
    "x_sjis": "cp932",
    "x_x_big5": "big5",
}
"""Names of encodings in pages that Python does not know."""
_MARKUP = re.compile(r"\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)?<(?:!doctype\s+html|html)\b", re.I | re.S)


def check_words(text: str, name: str) -> None:
    """Raises `InputError` for a document of white space only."""
    if not text.strip():
        raise InputError(f"{name} holds no text, only white space or markup; give a document with text")


def is_page(text: str, suffix: str) -> bool:
    """Whether a text is an HTML page, by its name, or by its content if the name is ambiguous."""
    return suffix in {".html", ".htm", ".xhtml"} or (suffix in {"", ".txt"} and bool(_MARKUP.match(text)))


def check_encoding(encoding: str, what: str = "") -> str:
    """Returns the name of a text encoding; raises `InputError` for any other."""
    check_kind(encoding, what or "encoding", str, "the name of one, such as 'utf-8' or 'latin-1'")
    try:
        codec = codecs.lookup(encoding).name.replace("-", "_")
        known = codec not in _NOT_OF_FILES and isinstance(b"a".decode(encoding, "replace"), str)
    except (LookupError, ValueError):  # ValueError: a zero byte, or a surrogate, in the name
        known = False
    if not known:
        shown = f"encoding={on_one_line(encoding)[:60]!r}"
        raise InputError(f"{what or shown} is unknown; name one such as utf-8, utf-16 or latin-1")
    return encoding


def decode(data: bytes, name: str, encoding: str | None = None) -> str:
    """Decodes the bytes of a text file strictly.

    Args:
        data: the whole file.
        name: its name in error messages.
        encoding: None uses the byte order mark, otherwise the declaration of an HTML page, otherwise UTF-8.
    """
    encoding_name = _detect(data, name) if encoding is None else check_encoding(encoding)
    try:
        text = data.decode(encoding_name)
    except UnicodeError as error:
        head = data[:8192]
        controls = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
        binary = controls * 100 > len(head)  # text does not have as many control characters
        if encoding is None and encoding_name == "utf-8" and binary:
            raise InputError(f"{name} is a binary file, not a text; {SAVE}") from None
        # A multi-byte codec may raise an error without position.
        where = isinstance(error, UnicodeDecodeError) and f"byte {error.object[error.start]:#04x} at {error.start}"
        raise InputError(f"{name} is not {encoding_name} ({where or error}); {_guess(data)}") from None
    if "\0" in text:
        raise InputError(
            f"{name} holds zero bytes: it is a binary file, or a text in another encoding than {encoding_name}; "
            "save it as text, or name its encoding with the encoding option, for example --encoding utf-16-le"
        )
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _guess(data: bytes) -> str:
    """Returns the remedy for a text in another encoding, with a guess if there is enough text."""
    from importlib.util import find_spec

    likely = None
    if len(data) >= ENOUGH and find_spec("charset_normalizer") is not None:
        from charset_normalizer import from_bytes

        guesses = from_bytes(data[:50_000], cp_isolation=list(COMMON_ENCODINGS))
        best = guesses.best()
        if best is not None:
            # The library sorts equally likely ones by name; Western Windows is the most common of these.
            equal = [guess for guess in guesses if (guess.chaos, guess.coherence) == (best.chaos, best.coherence)]
            names = {name for one in equal for name in one.could_be_from_charset}
            likely = "cp1252" if "cp1252" in names else best.encoding
    option = f"name its encoding with the encoding option, for example --encoding {likely or 'latin-1'}"
    return f"it looks like {likely}; {option}" if likely else option


def _detect(data: bytes, name: str) -> str:
    """Returns the encoding declared by the bytes, otherwise UTF-8."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return encoding
    head = data[:4096]
    declared = _DECLARED.search(_COMMENT.sub(b"", head)) if b"<" in head else None
    if declared is None:
        return "utf-8"
    encoding = declared.group(1).decode("ascii")
    label = encoding.lower().replace("-", "_")
    # A page that could be searched as ASCII is neither UTF-16 nor UTF-32, whatever it declares.
    if label.startswith(("utf_16", "utf_32", "ucs_", "unicode")) and "escape" not in label:
        return "utf-8"
    codec = check_encoding(_LABELS.get(label, encoding), f"the encoding {encoding!r} that {name} declares")
    # Browsers read Windows' superset for pages declared as Latin-1 or ASCII, and pages rely on it.
    western = codecs.lookup(codec).name in {"iso8859-1", "ascii"} and not _NOT_WINDOWS.search(data)
    return "cp1252" if western else codec
