"""compile_child.py: the real child, with providers that work, hang, crash and lie."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import compile_child
from spec_edge.runtime.providers.provider import Array, Job, Provider, ProviderFailed, ProviderMissing


def works(job: Job, file: Path) -> None:
    """Writes what it was asked, and one more file; counts its runs in the folder that an option names."""
    file.write_bytes(b"compiled:" + job.model.read_bytes() + repr(job).encode())
    (file.parent / "weights.part").write_bytes(b"w" * int(job.options.get("bytes", "10")))
    if counts := job.options.get("counts"):
        (Path(counts) / str(os.getpid())).touch()
        while len(list(Path(counts).iterdir())) < int(job.options.get("together", "1")):
            time.sleep(0.02)
    time.sleep(float(job.options.get("seconds", "0")))


def sleeps(job: Job, file: Path) -> None:
    """Hangs with a child of its own, which it names in a file beside the graph."""
    file.write_bytes(b"half")
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (job.model.parent / "processes").write_text(f"{os.getpid()} {other.pid}")
    time.sleep(600)


def aborts(job: Job, file: Path) -> None:
    del job
    file.write_bytes(b"half")
    sys.stderr.write("loading the compiler\nLLVM ERROR: StopLocationVerifierPass\n")
    sys.stderr.flush()
    os.abort()


def reads_nowhere(job: Job, file: Path) -> None:
    del job, file
    ctypes.string_at(0)


def leaves(job: Job, file: Path) -> None:
    del job
    file.write_bytes(b"half")
    os._exit(3)


def lies(job: Job, file: Path) -> None:
    del job, file


def refuses(job: Job, file: Path) -> None:
    del file
    raise ProviderFailed(f"node /layers.0/Reshape of {job.graph.name}\n  is not for this NPU")


def fills_the_disk(job: Job, file: Path) -> None:
    del job, file
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def is_missing(job: Job, file: Path) -> None:
    del job, file
    raise ProviderMissing("the compiler library is missing: pip install it")


def dies_when_unloaded(job: Job, file: Path) -> None:
    import atexit

    works(job, file)
    atexit.register(os.abort)


def _context(file: Path, *others: str) -> None:
    import onnx

    nodes = [onnx.helper.make_node(kind, [], ["y"], name=kind) for kind in ("EPContext", *others)]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "context", [], [])), file)


def takes_all_nodes(job: Job, file: Path) -> None:
    del job
    _context(file)


def leaves_nodes_out(job: Job, file: Path) -> None:
    del job
    _context(file, "Cast", "Gather")


class Device:
    """An `Opened` that notes what it is given, or fails as its name says."""

    placement: Mapping[str, int] = {"fake": 1}

    def __init__(self, job: Job, how: str) -> None:
        assert (job.artefact is None) == (how in SIGNS)
        assert job.artefact is None or job.artefact.read_bytes()
        self._job, self._how = job, how

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        def run() -> None:
            if self._how.endswith("dies_when_run"):
                os.abort()
            if self._how.endswith("fails_when_run"):
                raise ProviderFailed("the driver was reset")
            shapes = {name: (str(a.dtype), a.shape) for name, a in {**inputs, **outputs}.items()}
            if "ran" in self._job.options:
                Path(self._job.options["ran"]).write_text(repr(shapes))

        return run

    def close(self) -> None: ...


def dies_when_run(job: Job, file: Path) -> None:
    works(job, file)


def fails_when_run(job: Job, file: Path) -> None:
    works(job, file)


def opens(job: Job, file: Path) -> None:
    works(job, file)


def opens_and_dies_when_run(job: Job, file: Path) -> None:
    works(job, file)


def opens_and_fails_when_run(job: Job, file: Path) -> None:
    works(job, file)


SIGNS = ("opens", "opens_and_dies_when_run", "opens_and_fails_when_run")
"""Providers that have no compiled form."""

MADE = (works, sleeps, aborts, reads_nowhere, leaves, lies, refuses, fills_the_disk, is_missing, dies_when_unloaded)
MADE += (takes_all_nodes, leaves_nodes_out, dies_when_run, fails_when_run)
MADE += (opens, opens_and_dies_when_run, opens_and_fails_when_run)
BASE = Provider("", "npu", False, "nothing", find=None, open=None)  # type: ignore[arg-type]


def named(name: str) -> Provider:
    """The fake of that name."""
    for make in MADE:
        if make.__name__ == name:
            own = dataclasses.replace(BASE, name=name, compile=make, open=lambda job: Device(job, name))
            return dataclasses.replace(own, keeps=name not in SIGNS)
    raise BadUsage(f"no fake is called {name}")


if __name__ == "__main__":
    compile_child.main(named)
