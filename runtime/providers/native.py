"""native: spec-edge's own kernels for x86-64 CPUs with AVX2, over the fused graphs of block-quantised bundles.

The same weights as the provider `cpu` multiplies, in a layout for few rows at a time. Options: none. It passes over
other processors and other graphs (fp32, fp16, drafters inside a bundle) in silence: `cpu` is meant for those.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

from spec_edge.runtime.bench.machine import physical_cores
from spec_edge.runtime.native.library import library
from spec_edge.runtime.native.opened import NAME, NativeOpened, untranslatable
from spec_edge.runtime.providers.provider import Found, Job, Provider

MACHINES = ("x86_64", "amd64")


def find_here(options: Mapping[str, str]) -> Found:  # noqa: ARG001
    """ProviderMissing: the kernels were not built, or this processor cannot run them."""
    library()
    return Found(platform.processor() or platform.machine(), versions={"spec-edge": version("spec-edge")})


def unsuited(job: Job) -> str:
    """Why this graph, or this kind of processor, is none of its own; "" where it is."""
    if platform.machine().lower() not in MACHINES:
        return f"spec-edge's own kernels are for x86-64, not for {platform.machine()}"
    return untranslatable(job.model.read_bytes(), job.graph)


def open_job(job: Job) -> NativeOpened:
    library()
    weights = job.model.with_name(job.weights.file)
    return NativeOpened(job.model, weights, job.graph, job.threads or physical_cores())


PROVIDER = Provider(
    name=NAME,
    device="cpu",
    symbolic=True,
    install="reinstall spec-edge where a C compiler is at hand",
    find=find_here,
    open=open_job,
    suits=unsuited,
    fused=True,
)
