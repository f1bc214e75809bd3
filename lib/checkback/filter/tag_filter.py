"""The tag filter of a subscription: ``*``, or tags separated by ``||`` (FilterAPI.buildSubscriptionData)."""

from __future__ import annotations

from checkback.errors import SelectorError

ALL = "*"
#: String.trim: all up to the space
_TRIMMED = "".join(map(chr, range(0x21)))


def tags_of(text: str | None) -> frozenset[str] | None:
    """The tags that are delivered, compared whole. None: every message, also one without tags.

    None, "" and "*" are all messages; only white space: none at all. Raises SelectorError.
    """
    if not text or text == ALL:
        return None
    parts = text.split("||")
    if not any(parts):
        raise SelectorError("no tag between ||", "tag filter", "name a tag, or use *", text=text, position=1)
    return frozenset(filter(None, (part.strip(_TRIMMED) for part in parts)))
