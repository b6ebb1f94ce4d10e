"""`--provider fastest`: of the backends for this machine's CPU, the one that runs a bundle fastest, by measurement.

Enters: a bundle and a thread count. Leaves: a provider's name, and one line with the times it rests on. A backend is
measured once per bundle, version and thread count, through its own session; the curves are those of `costs.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable

from spec_edge.models.contract import SpecError
from spec_edge.runtime.bundle import Bundle
from spec_edge.runtime.costs import CostCurve, cost_key, load_costs, measured, save_costs
from spec_edge.runtime.providers.opening import NO_OPTIONS, opener, usable
from spec_edge.runtime.providers.provider import Provider
from spec_edge.runtime.sessions.choose import open_session

FASTEST = "fastest"
WEIGHED = (1, 4, 8)
"""Widths whose times count alike: plain decoding, and verify runs as speculation makes them."""

Say = Callable[[str], object]


def fastest(bundle: Bundle, threads: int | None, say: Say, among: Callable[[], Iterable[Provider]] = usable) -> str:
    """The name. SpecError: no backend runs this bundle."""
    curves: dict[str, CostCurve] = {}
    for on in among():
        if on.device != "cpu":
            continue
        try:
            curves[on.name] = _curve(bundle, on, threads)
        except SpecError as error:
            say(f"{on.name} is not measured: {error.message}")
    if not curves:
        raise SpecError("no backend for the CPU runs this bundle; export the model for the target 'cpu'")
    order = sorted(curves, key=lambda name: _cost(curves[name]))
    say(f"{FASTEST} is {order[0]} ({'; '.join(_times(name, curves[name]) for name in order)})")
    return order[0]


def _curve(bundle: Bundle, on: Provider, threads: int | None) -> CostCurve:
    found = on.find(NO_OPTIONS)
    key = cost_key(bundle.digest, on.name, found, threads or os.cpu_count() or 1)
    if stored := load_costs(key):
        return stored
    session = open_session(bundle, on, opener(bundle, on, threads))
    try:
        curve = measured(session)
    finally:
        session.close()
    save_costs(key, curve)
    return curve


def _cost(curve: CostCurve) -> float:
    return sum(math.log(curve.at(width)) for width in WEIGHED)


def _times(name: str, curve: CostCurve) -> str:
    times, widths = (", ".join(map(str, row)) for row in ([f"{1000 * curve.at(w):.1f}" for w in WEIGHED], WEIGHED))
    return f"{name}: {times} ms at widths {widths}"
