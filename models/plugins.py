"""Extension points: one file each, found by file name. No central list to edit.

Enters: a package and a user's name for a plugin (`-` in a name is `_` in its file).
Leaves: the module, or one line that lists the known names with the nearest match.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from types import ModuleType

from spec_edge.models.contract import BadUsage


def known(package: str, marker: str) -> tuple[str, ...]:
    """Names of the modules in `package` that define `marker` (the attribute that makes a file a plugin)."""
    modules = ((n, importlib.import_module(f"{package}.{n}")) for n in sorted(_files(package)))
    return tuple(n.replace("_", "-") for n, module in modules if hasattr(module, marker))


def find(package: str, marker: str, name: str, what: str) -> ModuleType:
    """The module called `name`; BadUsage names the known ones."""
    wanted = name.replace("_", "-")
    if (file := name.replace("-", "_")) in _files(package):  # the others need not be imported for it
        module = importlib.import_module(f"{package}.{file}")
        if hasattr(module, marker):
            return module
    names = known(package, marker)
    near = difflib.get_close_matches(wanted, names, 1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise BadUsage(f"unknown {what} '{name}'.{hint} Known: {', '.join(names)}")


def _files(package: str) -> frozenset[str]:
    """Names of its modules that may be plugins."""
    folder = importlib.import_module(package)
    return frozenset(m.name for m in pkgutil.iter_modules(folder.__path__) if not m.name.startswith("_"))
