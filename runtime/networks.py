"""The networks of the drafters inside a bundle, each opened when a method first wants it.

Enters: a bundle, and what opens a network by its method's name. Leaves: what that gives (see
`runtime/sessions/choose.py`), the same one at each call. It has a `close`; its method's file knows what else it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Protocol, runtime_checkable

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.bundle import Bundle

NETWORK = "network"
"""In the READS of a method whose weights lie in the bundle, under the method's name."""


class Network(Protocol):
    """A session of its own, apart from the target's."""

    def close(self) -> None: ...


def wanted(names: Sequence[str], modules: Sequence[ModuleType]) -> tuple[str, ...]:
    """Which of these methods have weights in the bundle."""
    pairs = zip(names, modules, strict=True)
    return tuple(name.replace("_", "-") for name, module in pairs if NETWORK in getattr(module, "READS", ()))


@runtime_checkable
class Timed(Protocol):
    """A network whose runs take turns with the target's."""

    def step_seconds(self, width: int) -> float:
        """Of a run of one row. width: the target's hidden size. Whatever text it holds is forgotten."""
        ...


class Networks:
    """Opened ones are kept until `close`."""

    def __init__(self, bundle: Bundle, open_network: Callable[[str], Network]) -> None:
        self._bundle, self._open_network = bundle, open_network
        self._opened: dict[str, Network] = {}

    def open(self, names: Sequence[str]) -> dict[str, Network]:
        """The network of each method. BadUsage: the bundle has no weights for it."""
        held = [d.name for d in self._bundle.manifest.drafters]
        for name in names:
            if name not in held:
                inside = f"it has {', '.join(held)}" if held else "it has none"
                raise BadUsage(
                    f"method '{name}' needs a drafter that this bundle does not have ({inside}); "
                    f"export the model again with --{name} PATH"
                )
            if name not in self._opened:
                self._opened[name] = self._open_network(name)
        return {name: self._opened[name] for name in names}

    def close(self) -> None:
        for network in self._opened.values():
            network.close()
        self._opened.clear()
