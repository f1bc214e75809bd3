"""Who acts, and why: the signature of every operator action. Pure."""

from __future__ import annotations

from typing import NamedTuple

from checkback.errors import SettingsError

ACTOR_MAX = 120
REASON_MAX = 500
_BETWEEN = ": "


class OperatorSignature(NamedTuple):
    """Actor and reason; ``remark`` holds both: "ACTOR: REASON"."""

    actor: str
    reason: str

    @property
    def remark(self) -> str:
        """Both as one string, the inverse of ``parse``."""
        return f"{self.actor}{_BETWEEN}{self.reason}"

    @classmethod
    def of(cls, actor: str, reason: str) -> OperatorSignature:
        """Validated: one line of printable text each, the actor without ": ". Raises SettingsError."""
        for option, text, most in (("--actor", actor, ACTOR_MAX), ("--reason", reason, REASON_MAX)):
            if not text.strip():
                raise SettingsError("is empty", option, "say who acts, and why")
            if len(text) > most:
                raise SettingsError(f"{len(text)} characters, over {most}", option, "make it shorter")
            if not text.isprintable():
                raise SettingsError("is not one line of printable text", option, "leave out what cannot be printed")
        if _BETWEEN in actor.strip():
            raise SettingsError('has a ": "', "--actor", "leave it out: what follows it is the reason")
        return cls(actor.strip(), reason.strip())

    @classmethod
    def parse(cls, remark: str | None) -> OperatorSignature:
        """The signature in ``remark``; text in another format is all reason."""
        actor, between, reason = (remark or "").partition(_BETWEEN)
        return cls(actor, reason) if between else cls("", remark or "")
