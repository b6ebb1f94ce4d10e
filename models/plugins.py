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
    folder = importlib.import_module(package)
    names = (m.name for m in pkgutil.iter_modules(folder.__path__) if not m.name.startswith("_"))
    modules = ((n, importlib.import_module(f"{package}.{n}")) for n in sorted(names))
    return tuple(n.replace("_", "-") for n, module in modules if hasattr(module, marker))


def find(package: str, marker: str, name: str, what: str) -> ModuleType:
    """The module called `name`; BadUsage names the known ones."""
    names = known(package, marker)
    wanted = name.replace("_", "-")
    if wanted not in names:
        near = difflib.get_close_matches(wanted, names, 1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise BadUsage(f"unknown {what} '{name}'.{hint} Known: {', '.join(names)}")
    return importlib.import_module(f"{package}.{wanted.replace('-', '_')}")
