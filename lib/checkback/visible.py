"""Text of others as a terminal may be given it: what would steer the terminal is shown instead of obeyed."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    r"""The text with all that is no letter, mark, sign or space written as JSON writes it: ``\u001b``, ``\n``.

    That is what terminals obey (C0, C1, ANSI escapes begin with them), what turns or hides text (Unicode's format
    characters, as U+202E), line ends, and halves of surrogate pairs, which cannot be printed. JSON stays the same JSON.
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char.isprintable() or unicodedata.category(char) == "Zs":
        return char
    if char in _SHORT:
        return _SHORT[char]
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{high:02x}{low:02x}" for high, low in zip(units[::2], units[1::2], strict=True))


_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
