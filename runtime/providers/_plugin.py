"""Execution providers of ONNX Runtime other than its own CPU's: libraries that are registered, or parts of its build.

Enters: the facts of one (`Plugin`). Leaves: a `Provider`. A library comes from the provider's own Python package or
from Windows ML; a device is chosen from those that ONNX Runtime then lists, and no other is tried.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnxruntime as ort

from spec_edge.runtime.providers._onnxruntime import Memory, OrtOpened, open_session, session_options
from spec_edge.runtime.providers._windows_ml import PACKAGE as WINDOWS_ML
from spec_edge.runtime.providers._windows_ml import catalogue
from spec_edge.runtime.providers.checks import guarded, refuse_symbolic
from spec_edge.runtime.providers.provider import Found, Job, Provider, ProviderFailed, ProviderMissing

SILENT = 4
"""Log severity: nothing but what ends the process. What went wrong is in the exception."""

Options = Mapping[str, str]
RECORDS = "enable_cuda_graph"
"""The option that has a provider record a run and replay it."""

SESSION = ("session.", "ep.", "optimization.")
"""How the keys of session options begin; every other option is the provider's."""


def _none() -> Options:
    return {}


def _kind(device: Any) -> str:
    """ "CPU", "GPU" or "NPU"."""
    return str(device.device.type).rpartition(".")[2]


def _fits(device: Any, kind: str, options: Options) -> bool:  # noqa: ARG001
    return _kind(device).lower() == kind


def _itself(options: Options) -> str:  # noqa: ARG001
    return ""


def _fine(versions: Mapping[str, str]) -> str:  # noqa: ARG001
    return ""


@dataclass(frozen=True)
class Plugin:
    """An execution provider.

    name       ours, as in --provider
    ep         ONNX Runtime's
    device     "gpu" or "npu"
    symbolic   takes symbolic shapes
    install    in words
    package    distribution that brings its library, "" for none; its module has `get_library_path()`
    builtin    some builds of ONNX Runtime contain it
    libraries  system -> the driver's library that must load
    defaults   options that job.options override
    bad        versions -> why these do not work together, "" where nothing is known against them
    fits       (device, kind, options) -> whether this device of ONNX Runtime's list is the one
    ours       options that only `fits` reads
    compiles   has a compiled form (EPContext); the others make their kernels when they open a graph
    memory     ONNX Runtime's name of the device memory that Python can hold tensors in; "": there is none
    shown      options -> what to call the device; "" for what it calls itself
    """

    name: str
    ep: str
    device: str
    symbolic: bool
    install: str
    package: str = ""
    builtin: bool = False
    libraries: Mapping[str, str] = field(default_factory=dict)
    defaults: Callable[[], Options] = _none
    bad: Callable[[Mapping[str, str]], str] = _fine
    fits: Callable[[Any, str, Options], bool] = _fits
    ours: frozenset[str] = frozenset()
    compiles: bool = True
    memory: str = ""
    shown: Callable[[Options], str] = _itself


def provider_of(plugin: Plugin) -> Provider:
    """What its file holds."""
    return Provider(
        name=plugin.name,
        device=plugin.device,
        symbolic=plugin.symbolic,
        install=plugin.install,
        find=partial(find_plugin, plugin),
        open=partial(open_plugin, plugin),
        compile=partial(compile_plugin if plugin.compiles else leave_sign, plugin),
        resident=bool(plugin.memory),
        keeps=plugin.compiles,
    )


def find_plugin(plugin: Plugin, options: Options) -> Found:
    """The device that `open_plugin` would use."""
    versions = _versions(plugin)
    if reason := plugin.bad(versions):
        raise ProviderMissing(reason)
    versions |= {name: value for name, value in plugin.defaults().items() if name == RECORDS}
    devices = _devices(plugin, options)
    if not devices:
        return Found(plugin.ep, versions=versions)
    metadata = {**devices[0].device.metadata, **devices[0].ep_metadata}
    shown = (
        plugin.shown(options)
        or metadata.get("Description")
        or f"{devices[0].device.vendor} {_kind(devices[0])}".strip()
    )
    told = {plugin.ep: metadata["version"]} if metadata.get("version") else {}
    return Found(shown, metadata.get("driver_version", ""), versions | told)


def open_plugin(plugin: Plugin, job: Job) -> OrtOpened:
    """Every node on the NPU; on a GPU most of them, and ONNX Runtime's CPU provider may have a few."""
    opened = _opened(plugin, job, _session_options(plugin, job))
    own, others = opened.placement.get(plugin.name, 0), dict(opened.placement)
    others.pop(plugin.name, None)
    if others and (plugin.device == "npu" or not own):
        opened.close()
        where = ", ".join(f"{count} nodes on {name}" for name, count in sorted(others.items()))
        raise ProviderFailed(f"{plugin.name} did not take all of {job.graph.file.file}: {own} nodes there, {where}")
    return opened


def leave_sign(plugin: Plugin, job: Job, file: Path) -> None:
    """Of a provider without a compiled form: the child that calls this opens the graph next, or does not live to."""
    file.write_text(f"{plugin.name} opened {job.graph.name}\n", encoding="utf-8")


def compile_plugin(plugin: Plugin, job: Job, file: Path) -> None:
    """Write the graph with the compiled binary inside (EPContext), whole or not at all."""
    partial_ = file.with_name(f"{file.name}.part.onnx")
    partial_.unlink(missing_ok=True)  # ONNX Runtime refuses to write over it
    options = _session_options(plugin, job)
    for key, value in (("enable", "1"), ("file_path", str(partial_)), ("embed_mode", "1")):
        options.add_session_config_entry(f"ep.context_{key}", value)
    try:
        _opened(plugin, job, options).close()
        if not partial_.is_file():
            raise ProviderFailed(f"{plugin.name} compiles nothing ahead of time")
        partial_.replace(file)
    finally:
        partial_.unlink(missing_ok=True)


def _opened(plugin: Plugin, job: Job, options: Any) -> OrtOpened:
    if not plugin.symbolic:
        refuse_symbolic(plugin.name, job.graph)
    own = {k: v for k, v in job.options.items() if not k.startswith(SESSION) and k not in plugin.ours}
    own = {**plugin.defaults(), **own}
    devices = _devices(plugin, job.options)
    names = {plugin.ep: plugin.name}
    memory = Memory(plugin.memory, own.get("device_id", "0"), own.get(RECORDS) == "1") if plugin.memory else None
    if not devices:
        return open_session(job, plugin.name, options, [(plugin.ep, own)], names, memory)
    guarded(
        f"{plugin.name} refuses its options",
        lambda: options.add_provider_for_devices(list(devices[:1]), own),
    )
    return open_session(job, plugin.name, options, None, names, memory)


def _session_options(plugin: Plugin, job: Job) -> Any:
    options = session_options(job)
    options.log_severity_level = SILENT
    if plugin.device == "npu":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for key, value in job.options.items():
        if key.startswith(SESSION):
            options.add_session_config_entry(key, value)
    return options


def _devices(plugin: Plugin, options: Options) -> Sequence[Any]:
    """Its devices in ONNX Runtime's list that fit; () where it is part of ONNX Runtime's build instead."""
    _refuse_without_driver(plugin)
    listed = _listed(plugin)
    if not listed:
        library = _library(plugin)
        if library:
            guarded_missing(
                f"{plugin.name} cannot be loaded from {Path(library).name}",
                lambda: ort.register_execution_provider_library(plugin.ep, library),
            )
            listed = _listed(plugin)
        elif plugin.builtin and plugin.ep in ort.get_available_providers():
            return ()
        else:
            raise ProviderMissing(f"{plugin.name} is not installed; {plugin.install}")
    kind = plugin.device
    fitting = [device for device in listed if plugin.fits(device, kind, options)]
    if not fitting:
        raise ProviderMissing(f"{plugin.name} is installed, but finds no {kind.upper()} on this machine")
    return fitting


def guarded_missing(what: str, call: Callable[[], object]) -> None:
    """`call()`; what goes wrong makes the provider missing."""
    try:
        guarded(what, call)
    except ProviderFailed as error:
        raise ProviderMissing(error.message) from None


def _listed(plugin: Plugin) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == plugin.ep]


def _library(plugin: Plugin) -> str:
    """Path of its library, from its own package or else from Windows ML; "" where neither has it."""
    if plugin.package:
        try:
            return str(importlib.import_module(plugin.package.replace("-", "_")).get_library_path())
        except ImportError:
            pass
        except OSError as error:
            raise ProviderMissing(f"{plugin.package} is damaged ({error}); install it again") from None
    if platform.system() != "Windows":
        return ""
    found = [entry for entry in catalogue() if entry.name == plugin.ep]
    if found and not found[0].library:
        raise ProviderMissing(f"Windows ML knows {plugin.ep} but has not installed it; install it in Windows Update")
    return found[0].library if found else ""


def _refuse_without_driver(plugin: Plugin) -> None:
    name = plugin.libraries.get(platform.system())
    if name is None:
        return
    try:
        ctypes.CDLL(name)
    except OSError:
        raise ProviderMissing(f"{plugin.name} needs the driver's library {name}, which does not load here") from None


def _versions(plugin: Plugin) -> dict[str, str]:
    return {"onnxruntime": ort.__version__} | _version(plugin.package) | _version(WINDOWS_ML)


def _version(package: str) -> dict[str, str]:
    """Empty where it is not installed."""
    try:
        return {package: version(package)} if package else {}
    except PackageNotFoundError:
        return {}
