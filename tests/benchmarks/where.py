"""Where the time of a warm batch goes: seconds by step, seconds of CPU by who spends them; and a picture of both."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks.load import Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, say, scaled
from benchmarks.stepper import Stepper
from checkback.reconcile.publish import publisher as publish
from checkback.reconcile.publish.half_lookup import HalfLookup
from checkback.reconcile.publish.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable

    Seconds = dict[str, float]

PENDING_EVERY = 20
ROUNDS = 3
#: transactions of a batch, with the rounds before those that count: Java compiles what a small batch needs for longer
BATCHES = {100: 100, 20_000: 4, 1_000_000: 4}
#: Where the picture goes; WHERE_SVG in the environment, as for docs/performance.md.
PICTURE = "WHERE_SVG"
#: threads of Java, by the beginning of their names
_THREADS = {
    "C1 ": "compiling (Java)",
    "C2 ": "compiling (Java)",
    "Executor task": "tasks (Java)",
    "GC ": "garbage (Java)",
}
_STEPS = ("decide", "sort actions", "publish: read, write", "commit", "Spark, around it")


def bench(root: str) -> None:
    """For small and large batches: what each step takes, and each kind of thread."""
    found = {}
    for size, warm_up in BATCHES.items():
        n = scaled(size, least=min(size, 2_000)) // PENDING_EVERY * PENDING_EVERY
        steps, cpu = figures(f"{root}/{size}", n, scaled(warm_up, least=4))
        report("where", sum(steps.values()), "s", ROUNDS, transactions=n, steps=steps, cpu=cpu)
        found[n] = steps, cpu
    if os.environ.get(PICTURE):
        picture(found, Path(os.environ[PICTURE]))


def figures(root: str, n: int, warm_up: int) -> tuple[Seconds, Seconds]:
    """Medians of the rounds after the first ones: seconds by step, and of CPU."""
    rounds: list[tuple[Seconds, Seconds]] = []
    with lake(root) as place, ExitStack() as stack:
        load, seconds = Load(place.root, pending_every=PENDING_EVERY), defaultdict[str, float](float)
        for owner, name in (
            (Publisher, "__call__"),
            (Publisher, "publish"),
            (Publisher, "_add"),
            (HalfLookup, "of"),
        ):
            _watch(stack, owner, name, seconds)
        _watch(stack, publish, "side_by_side", seconds)
        with Stepper(place) as stepper:
            for number in range(warm_up + ROUNDS):
                first = number * n
                load.land(first, n)
                seconds.clear()
                before = _cpu()
                seconds["all"] = stepper.step(lambda: None, n - n // PENDING_EVERY, n // PENDING_EVERY)
                after = _cpu()
                rounds.append((_by_step(seconds), {who: after[who] - before.get(who, 0) for who in after}))
                say(f"where: {n} transactions in {seconds['all']:.2f} s")
        everything = (warm_up + ROUNDS) * n
        prove(place, everything - everything // PENDING_EVERY, everything // PENDING_EVERY)
    warm = rounds[warm_up:]
    return _medians([steps for steps, _ in warm]), _medians([cpu for _, cpu in warm])


def _medians(rounds: list[Seconds]) -> Seconds:
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: round(statistics.median(one.get(name, 0) for one in rounds), 3) for name in names}


def _by_step(seconds: Seconds) -> Seconds:
    work = seconds["_add"] - seconds["side_by_side"]
    values = (
        seconds["__call__"] - seconds["publish"],
        seconds["publish"] - seconds["_add"],
        work,
        seconds["side_by_side"],
        seconds["all"] - seconds["__call__"],
    )
    return dict(zip(_STEPS, values, strict=True))


def _watch(stack: ExitStack, owner: Any, name: str, seconds: Seconds) -> None:
    """Inside the context, count the seconds that calls take."""
    work: Callable[..., Any] = getattr(owner, name)

    def watched(*args: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return work(*args, **more)
        finally:
            seconds[name] += time.perf_counter() - began

    method = staticmethod(watched) if isinstance(owner.__dict__.get(name), classmethod) else watched
    stack.enter_context(mock.patch.object(owner, name, method))


def _cpu() -> Seconds:
    """Seconds of CPU so far of this process and all it has started, by who spent them."""
    spent = defaultdict[str, float](float)
    ticks = os.sysconf("SC_CLK_TCK")
    for process in _family():
        try:
            command = Path(f"/proc/{process}/comm").read_text().strip()
            threads = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/stat")]
        except OSError:
            continue
        for line in threads:
            thread, fields = line[line.index("(") + 1 : line.rindex(")")], line.rpartition(")")[2].split()
            spent[_who(process, command, thread)] += (int(fields[11]) + int(fields[12])) / ticks
    return spent


def _family() -> set[int]:
    """This process and its descendants."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(place.parent.name)] = int(place.read_text().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _who(process: int, command: str, thread: str) -> str:
    if process == os.getpid():
        return "driver (Python)"
    if command.startswith("java"):
        return next((who for begin, who in _THREADS.items() if thread.startswith(begin)), "driver (Java)")
    return "tasks (Python)"


def picture(found: dict[int, tuple[Seconds, Seconds]], file: Path) -> None:
    """Bars of both kinds, one a batch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.2 + 1.1 * len(found)), layout="constrained")
    for place, title in enumerate(("by step", "CPU of two cores, by who spends it")):
        axes = figure.add_subplot(1, 2, place + 1)
        left = [0.0] * len(found)
        for number, name in enumerate(dict.fromkeys(name for each in found.values() for name in each[place])):
            widths = [each[place].get(name, 0) for each in found.values()]
            axes.barh(range(len(found)), widths, left=left, color=f"C{number}", label=name)
            left = [begin + width for begin, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(found)), [f"{n:,} in a batch" if place == 0 else "" for n in found])
        axes.set_xlabel("seconds")
        axes.set_title(title, fontsize=10)
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})
