"""The result of a replay. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from checkback.storage.timestamps import time_of
from checkback.what_if.figures import Figures, total

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from checkback.reconcile.segment import Rules
    from checkback.what_if.batch_history import BatchHistory
    from checkback.what_if.parts import Change

#: transactions that a WhatIf keeps
EXAMPLES = 50


@dataclass
class WhatIf:
    """What would have been otherwise.

    ``changes``: the changed rules, as fields of Rules. ``rules``: those in force, the last ones. ``since``, ``until``:
    the first and last batch, UTC; ``batches``: their number. ``groups``: figures by producer group. ``examples``: the
    first transactions whose state would have been another.
    """

    changes: Mapping[str, Any]
    rules: Rules
    since: datetime
    until: datetime
    batches: int
    groups: dict[str, Figures] = field(default_factory=dict)
    examples: list[Change] = field(default_factory=list)

    @property
    def total(self) -> Figures:
        """The figures of all groups."""
        return total(self.groups.values())

    def take(self, groups: Mapping[str, Figures], changes: Iterable[Change], tell: Callable[[Change], object]) -> None:
        """Add those of a part."""
        for group, figures in groups.items():
            self.groups.setdefault(group, Figures()).add(figures)
        for change in changes:
            tell(change)
            if len(self.examples) < EXAMPLES:
                self.examples.append(change)


def begun(history: BatchHistory, changes: Mapping[str, Any]) -> WhatIf:
    """The result without figures."""
    timeline = history.timeline
    since, until = (time_of(int(time)) for time in (timeline.times.min(), timeline.times.max()))
    return WhatIf(changes, timeline.rules_at(len(timeline) - 1), since, until, len(timeline))
