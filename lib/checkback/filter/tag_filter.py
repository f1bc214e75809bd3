"""The tag filter of a subscription: ``*``, or tags separated by ``||`` (FilterAPI.buildSubscriptionData)."""

from __future__ import annotations

from dataclasses import dataclass

from checkback.errors import SelectorError

ALL = "*"
#: String.trim: all up to the space
_TRIMMED = "".join(map(chr, range(0x21)))


@dataclass(frozen=True)
class TagFilter:
    """``tags``: those that are delivered; None: every message, also one without tags."""

    tags: frozenset[str] | None

    @classmethod
    def of(cls, text: str | None) -> TagFilter:
        """The filter. None, "" and "*" are all messages; only white space: none at all. Raises SelectorError."""
        if not text or text == ALL:
            return cls(None)
        parts = text.split("||")
        if not any(parts):
            raise SelectorError("no tag between ||", "tag filter", "name a tag, or use *", text=text, position=1)
        return cls(frozenset(filter(None, (part.strip(_TRIMMED) for part in parts))))

    def matches(self, tags: str | None) -> bool:
        """True if a message with these tags is delivered; a message's tags are compared whole."""
        return self.tags is None or (tags is not None and tags in self.tags)
