"""A program under test, in a process and an interpreter of its own.

Enters: the path of an adapter (see peers/__init__.py) as the only argument, then one JSON object a line on standard
input: {"do": "version" | "convert" | "open" | "generate" | "logits" | "settings", ...}. Leaves: one JSON object a line
on standard output, {"ok": true, ...} or {"ok": false, "error": "..."}. It ends when its input does.

Runs where spec-edge is not installed: standard library only, and whatever the adapter imports (numpy for logits).
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any, TextIO


def main() -> None:
    """Answer until the input ends."""
    answers = _own_output()
    sys.path.pop(0)  # this folder: its files must not stand in for packages of the same name
    adapter = _load(sys.argv[1])
    state: dict[str, Any] = {}
    for line in sys.stdin:
        try:
            answer = {"ok": True, **DO[json.loads(line)["do"]](adapter, state, json.loads(line))}
        except BaseException as error:
            answer = {"ok": False, "error": _one_line(error), "missing": _missing(adapter, error)}
            if not isinstance(error, Exception):
                raise
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _own_output() -> TextIO:
    """Standard output for answers alone: what libraries print there goes to standard error."""
    private = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(private, "w", encoding="utf-8", newline="\n")


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("spec_edge_peer", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def _missing(adapter: Any, error: BaseException) -> bool:
    """Whether the program itself, or what it does not come with, is not installed here."""
    needed = (adapter.PACKAGE, *getattr(adapter, "BESIDE", ()))
    return isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in needed


def _version(adapter: Any, state: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    del state, job
    return {"version": adapter.version(), "python": sys.version.split()[0]}


def _convert(adapter: Any, state: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    del state
    adapter.convert(job["source"], job["folder"], job["precision"])
    return {}


def _open(adapter: Any, state: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    state["model"] = adapter.open_model(
        job["model"], job["draft"], job["threads"], job["precision"], tuple(job["methods"])
    )
    return {}


def _generate(adapter: Any, state: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    tokens, arrivals, steps = adapter.generate(state["model"], job["method"], job["ids"], job["new_tokens"])
    return {"tokens": [int(t) for t in tokens], "arrivals": arrivals, "steps": steps}


def _logits(adapter: Any, state: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    found = adapter.logits(state["model"], job["ids"])
    if found is None:
        return {"rows": 0}
    import numpy as np

    np.save(job["file"], np.asarray(found, np.float32), allow_pickle=False)
    return {"rows": len(found)}


def _settings(adapter: Any, state: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    del state
    return {"settings": adapter.settings(job["method"])}


DO = {
    "version": _version,
    "convert": _convert,
    "open": _open,
    "generate": _generate,
    "logits": _logits,
    "settings": _settings,
}

if __name__ == "__main__":
    main()
