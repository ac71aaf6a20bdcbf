"""Escapes texts that come from outside, so that they are safe to print on a terminal and in logs.

A name or an error message may hold an escape sequence that rewrites a terminal, a character that turns
the reading direction around, or a line break that begins a forged log line. Backslash sequences
replace all of them: "\\x1b", "\\u202e", "\\n".
"""

from __future__ import annotations

from itertools import starmap


def escape_control_chars(text: str) -> str:
    """The text with its control characters escaped, except line breaks ("\\n" only)."""
    return text if text.isprintable() else "\n".join(map(escape_to_one_line, text.split("\n")))


def escape_to_one_line(text: str) -> str:
    """The text with its control characters escaped, also line breaks."""
    return text if text.isprintable() else "".join(map(_escape_char, text))


def cut_out_middle(text: str, chars_max: int) -> str:
    """A text longer than `chars_max` becomes its first and last `chars_max` / 2 characters."""
    half = chars_max // 2
    if len(text) <= chars_max:
        return text
    return f"{text[:half]}\n[{len(text) - 2 * half} characters are left out]\n{text[-half:]}"


def escape_json_document(document: str) -> str:
    """Escapes the control characters of a one-line JSON document as JSON does."""
    if document.isprintable():
        return document
    return "".join(ch if ch.isprintable() else _json_escape_of(ch) for ch in document)


def _escape_char(ch: str) -> str:
    if ch.isprintable():
        return ch
    if ch == "\n":
        return "\\n"
    code = ord(ch)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape_of(ch: str) -> str:
    """The JSON escape of a character: its UTF-16 code units."""
    data = ch.encode("utf-16-be", "surrogatepass")
    return "".join(starmap("\\u{:02x}{:02x}".format, zip(data[::2], data[1::2], strict=True)))
