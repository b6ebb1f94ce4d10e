"""What a verify run costs by width, on this machine.

Enters: a session that holds some text. Leaves: a `CostCurve`, and a small file in the user's cache folder so
that a machine is measured once per bundle, provider, driver, versions and thread count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

from spec_edge.models.contract import SpecError
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.provider import Found
from spec_edge.runtime.remembered import folder_of, recall, remember

PAST, FAR = 128, 512
"""Tokens of past at which costs are measured, and at which it is seen how they grow."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a verify run at each of some widths, ascending; in between, and past the last, linear.

    growth  seconds that each row takes more for each token of text past PAST: attention reads them all
    """

    widths: tuple[int, ...]
    seconds: tuple[float, ...]
    growth: float = 0.0

    def __post_init__(self) -> None:
        if not self.widths or len(self.widths) != len(self.seconds):
            raise SpecError(f"a cost curve needs one time per width, not {len(self.seconds)} for {self.widths}")
        if self.widths[0] < 1 or list(self.widths) != sorted(set(self.widths)):
            raise SpecError(f"a cost curve's widths must ascend from 1 or more, not {self.widths}")
        if not all(0 < s < float("inf") for s in self.seconds):
            raise SpecError(f"a cost curve's times must be positive, not {self.seconds}")
        if not 0 <= self.growth < float("inf"):
            raise SpecError(f"a cost curve's growth must not be negative, not {self.growth}")

    def at(self, width: int) -> float:
        """Seconds at this width; below the first measured width, the time of that one."""
        if width <= self.widths[0] or len(self.widths) == 1:
            return self.seconds[0]
        i = next((i for i, w in enumerate(self.widths) if w >= width), len(self.widths) - 1)
        (w0, w1), (s0, s1) = self.widths[i - 1 : i + 1], self.seconds[i - 1 : i + 1]
        at = s0 + (s1 - s0) * (width - w0) / (w1 - w0)
        # A falling last segment is noise: past the last width the cost never falls.
        return at if width <= w1 else max(at, s1)

    def over(self, length: int) -> CostCurve:
        """The curve over a text of this length, as it stays: it grows no further."""
        more = self.growth * (length - PAST)
        seconds = (max(s + more * w, s / 2) for w, s in zip(self.widths, self.seconds, strict=True))
        return replace(self, seconds=tuple(seconds), growth=0.0) if self.growth else self


WIDTHS = (1, 2, 3, 4, 5, 6, 8, 16)
"""Kernels work in tiles of rows, so that the curve has steps: the fifth row may cost more than the four before."""

FAR_WIDTH = 8
"""Most rows of the run that is compared with one row there."""

BURST, WARM = 2, 0.025
"""Runs of a width that are timed one after the other, and seconds of such runs before them."""

TIMED = 8
"""Runs of a drafter that are timed."""

UNMEASURED = CostCurve((1, 2, 4, 8, 16), (1.0, 1.3, 1.75, 2.6, 4.0))
"""Shape to assume where nothing was measured: a 4-bit model on a laptop CPU, the steepest curve seen."""


def measure(
    session: Session, widths: Sequence[int], repeats: int = 3, clock: Callable[[], float] = perf_counter
) -> CostCurve:
    """Median time of a verify run at each width that fits; the session holds text and is left unchanged.

    Widths take turns, so that a disturbance of the machine does not fall on one of them, and each has several runs at a
    turn, since a machine that only reads weights does it faster after a while: single rows between wider runs
    took 4.8 ms where plain decoding took 2.5 (SmolLM2, a Xeon). SpecError: no text.
    """
    if session.length < 1:
        raise SpecError("costs are measured over a text; prefill one first")
    room = min(session.max_width, session.capacity - session.length)
    fitting = tuple(w for w in sorted(set(widths)) if w <= room)
    times: dict[int, list[float]] = {w: [] for w in fitting}
    for turn in range(repeats + 1):
        for width in fitting:
            times[width] += _burst(session, Draft.chain([0] * (width - 1)), BURST if turn else 0, clock)
    return CostCurve(fitting, tuple(median(t) for t in times.values()))


def _burst(session: Session, draft: Draft, count: int, clock: Callable[[], float]) -> list[float]:
    """Times of `count` runs, after others that begin the burst: the first one of all allocates."""
    begun = clock()
    session.verify(0, draft)
    while count and clock() - begun < WARM:
        session.verify(0, draft)
    times = []
    for _ in range(count):
        begun = clock()
        session.verify(0, draft)
        times.append(clock() - begun)
    return times


def measured(session: Session, widths: Sequence[int] = WIDTHS) -> CostCurve:
    """The curve of a session over a short text of its own; the session is empty before and after."""
    session.truncate(0)
    try:
        past = min(PAST, session.capacity // 2)
        session.prefill([0] * past)
        curve = measure(session, widths)
        return replace(curve, growth=_growth(session, curve, past))
    finally:  # also when somebody interrupts: no row of it may be taken for a text's
        session.truncate(0)


def _growth(session: Session, near: CostCurve, past: int) -> float:
    """What a row takes more for each further token, by how the widest run of up to 8 rows compares with one row over a
    longer text: the machine's speed at that moment does not matter then."""
    wide = max(w for w in near.widths if w <= FAR_WIDTH)
    if wide < 4 or session.capacity < FAR + wide or past < PAST:
        return 0.0
    session.prefill([0] * (FAR - past))
    far = measure(session, (1, wide))
    ratio = far.at(wide) / far.at(1)
    return max(0.0, ratio * near.at(1) - near.at(wide)) / ((FAR - past) * max(1.0, wide - ratio))


def run_seconds(run: Callable[[], object], before: Callable[[], object], clock: Callable[[], float]) -> float:
    """Median time of a run; the first one, which allocates, is left out. before: what comes before each, untimed."""
    times = []
    for _ in range(TIMED + 1):
        before()
        begun = clock()
        run()
        times.append(clock() - begun)
    return median(times[1:])


def cost_key(bundle: str, provider: str, found: Found, threads: int, widths: Sequence[int] = WIDTHS) -> str:
    """What a curve depends on. bundle: its hash; found: the device, its driver, the versions of what takes part."""
    return json.dumps([bundle, provider, found.device, found.driver, sorted(found.versions.items()), threads, *widths])


def costs_folder() -> Path:
    """Where curves are kept."""
    return folder_of("costs")


def load_costs(key: str, folder: Path | None = None) -> CostCurve | None:
    """The curve stored under `key`; None if there is none that can be read."""
    stored = recall(folder or costs_folder(), key)
    try:
        if stored is None:
            return None
        widths, seconds = tuple(int(w) for w in stored["widths"]), tuple(float(s) for s in stored["seconds"])
        return CostCurve(widths, seconds, float(stored["growth"]))
    except (ValueError, TypeError, KeyError, OverflowError, SpecError):
        return None


def save_costs(key: str, curve: CostCurve, folder: Path | None = None) -> bool:
    """Store it, whole or not at all. False where the folder cannot be written: the next run measures again."""
    return remember(folder or costs_folder(), key, vars(curve))
