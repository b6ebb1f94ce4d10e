"""openvino_virtual_npu.py BUNDLE... [--only TEXT]: which nodes of every static graph OpenVINO's virtual NPUs claim.

Needs onnxruntime 1.32 and onnxruntime-ep-openvino 1.8.1; no NPU. A virtual NPU says which nodes the plug-in would run
there. The parts are built for the CPU (NPUW_DEVICES=CPU), since the wheel for Linux holds no NPU compiler: this proves
what is claimed, not that it compiles (intel_npu/ does that), nor numerics or speed. ONNX Runtime folds a few nodes away
before it asks. Exit code 1: a node is not claimed.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import click
import onnxruntime

from spec_edge.models.contract import GraphSpec, SpecError
from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.onnx_nodes import nodes_of
from spec_edge.runtime.providers._plugin import Plugin, open_plugin
from spec_edge.runtime.providers.opening import job

PLATFORMS = ("4000", "5010")
LOAD = '{"NPU": {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU"}}'
VIRTUAL = Plugin(
    name="openvino-ep",
    ep="OpenVINOExecutionProvider",
    device="npu",
    symbolic=False,
    install="",
    package="onnxruntime-ep-openvino",
)


def on_platform(number: str) -> Plugin:
    """The plug-in with the virtual NPU of this platform, and no other."""

    def fits(device: Any, kind: str, options: object) -> bool:
        del kind, options
        return device.ep_metadata.get("npu_platform") == number

    return dataclasses.replace(VIRTUAL, fits=fits)


def claimed(bundle: Bundle, graph: GraphSpec, platform: str) -> tuple[str, bool]:
    """What to say of a graph, and whether all of it is claimed."""
    try:
        opened = open_plugin(on_platform(platform), job(bundle, graph, None, {"load_config": LOAD}))
    except SpecError as error:
        return error.message[:200], False
    placed = dict(opened.placement)
    opened.close()
    return ", ".join(f"{n} {name}" if name != VIRTUAL.name else f"{n}" for name, n in placed.items()), len(placed) == 1


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--only", default="", help="Only graphs with this in their name.")
def main(folders: tuple[Path, ...], only: str) -> None:
    library = importlib.import_module("onnxruntime_ep_openvino").get_library_path()
    onnxruntime.register_execution_provider_library("openvino.virtual", library)
    good = True
    print("| bundle | graph | nodes | " + " | ".join(f"claimed, {p}" for p in PLATFORMS) + " |\n|---|---|---|---|---|")
    for bundle in map(open_bundle, folders):
        for graph in bundle.manifest.graphs:
            if only not in graph.name or any(isinstance(d, str) for t in graph.inputs for d in t.shape):
                continue
            total = len(nodes_of(bundle.path(graph.file).read_bytes()).nodes)
            cells, whole = zip(*(claimed(bundle, graph, platform) for platform in PLATFORMS), strict=True)
            print(f"| {bundle.manifest.model.name} | {graph.name} | {total} | {' | '.join(cells)} |", flush=True)
            good &= all(whole)
    sys.exit(int(not good))


if __name__ == "__main__":
    main()
