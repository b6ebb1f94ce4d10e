"""native: spec-edge's own kernels for x86-64 CPUs with AVX2, over the fused graphs of block-quantised bundles.

The same weights as the provider `cpu` multiplies, in a layout for few rows at a time. Options: none. It passes over
other processors and other graphs (fp32, fp16, Medusa heads of several layers, EAGLE-1) in silence: `cpu` is meant for
those.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import version

from spec_edge.runtime.bench.machine import physical_cores
from spec_edge.runtime.native.library import instructions, library, unfit
from spec_edge.runtime.native.mirror import VERSION
from spec_edge.runtime.native.opened import NAME, NativeOpened, untranslatable
from spec_edge.runtime.providers.provider import Found, Job, Provider


def find_here(options: Mapping[str, str]) -> Found:  # noqa: ARG001
    """ProviderMissing: the kernels were not built, or this processor cannot run them."""
    library()
    device = f"{platform.processor() or platform.machine()}, {instructions()}"
    return Found(device, versions={"spec-edge": version("spec-edge"), "kernels": str(VERSION)})


def unsuited(job: Job) -> str:
    """Why this graph, or this kind of processor, is none of its own; "" where it is."""
    return unfit() or untranslatable(job.model.read_bytes(), job.graph)


def processors() -> int:
    """Those that this process may use: more threads than that would wait for one another at every stage."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def open_job(job: Job) -> NativeOpened:
    library()
    weights = job.model.with_name(job.weights.file)
    return NativeOpened(job.model, weights, job.graph, min(job.threads or physical_cores(), processors()))


PROVIDER = Provider(
    name=NAME,
    device="cpu",
    symbolic=True,
    install="reinstall spec-edge where a C compiler is at hand",
    find=find_here,
    open=open_job,
    suits=unsuited,
    fused=True,
    alone=True,
)
