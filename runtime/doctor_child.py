"""The child process that asks providers what they find: `python -m spec_edge.runtime.doctor_child NAME...`.

Enters: names of providers; none for all. Leaves: on standard output lines that begin with MARK: all their names, then
one before each and one after it, so that the parent knows which one took this process down.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

MARK = "spec-edge-doctor:"


def tell(values: dict[str, Any]) -> None:
    """One line, at once."""
    sys.stdout.write(f"\n{MARK}{json.dumps(values)}\n")
    sys.stdout.flush()


def ask(name: str) -> dict[str, Any]:
    """What a provider finds, or why not."""
    from spec_edge.runtime.providers.provider import ProviderMissing, provider

    try:
        on = provider(name)
        facts = {"device": on.device, "install": on.install}
    except BaseException as error:
        return {"state": "broken", "reason": _words(error)}
    try:
        found = on.find({})
    except ProviderMissing as error:
        return {**facts, "state": "missing", "reason": error.message}
    except BaseException as error:
        return {**facts, "state": "broken", "reason": _words(error)}
    return {**facts, "state": "ready", "found": found.device, "driver": found.driver, "versions": dict(found.versions)}


def _words(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main(asked: Sequence[str]) -> None:
    from spec_edge.models.plugins import known
    from spec_edge.runtime.providers.provider import PACKAGE

    names = asked or known(PACKAGE, "PROVIDER")
    tell({"names": list(names)})
    for name in names:
        tell({"name": name, "state": "begun"})
        tell({"name": name, **ask(name)})
    os._exit(0)  # a driver that crashes when it is unloaded changes nothing


if __name__ == "__main__":
    main(sys.argv[1:])
