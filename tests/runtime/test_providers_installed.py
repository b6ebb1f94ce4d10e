"""Plug-ins of ONNX Runtime that compile or claim without their hardware, where they are installed."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest

from spec_edge.runtime.bundle import open_bundle
from spec_edge.runtime.onnx_nodes import nodes_of
from spec_edge.runtime.providers import qnn
from spec_edge.runtime.providers._plugin import Plugin, open_plugin
from spec_edge.runtime.providers.opening import job
from spec_edge.runtime.providers.provider import ProviderFailed, ProviderMissing, provider

SNAPDRAGON_X = {qnn.PREPARE: "1", "soc_model": "60", "htp_arch": "73"}


def test_qualcomms_compiler(tiny_half: Path, tmp_path: Path) -> None:
    """Every node goes into the binary, or there is none."""
    pytest.importorskip(
        "onnxruntime_qnn", reason="onnxruntime-qnn is not installed here: .ci/npu_cut.py makes an environment with it"
    )
    on, bundle = provider("qnn"), open_bundle(tiny_half)
    if not any(d.device.type.name == "NPU" for d in onnxruntime.get_ep_devices()):
        with pytest.raises(ProviderMissing, match="finds no NPU on this machine"):
            on.find({})
    found = on.find(SNAPDRAGON_X)
    assert found.device == "HTP v73, its compiler only" and "onnxruntime-qnn" in found.versions
    assert on.compile is not None
    for graph in bundle.graphs("target", "verify"):
        file = tmp_path / graph.name
        on.compile(job(bundle, graph, None, SNAPDRAGON_X), file)
        assert [node.kind for node in nodes_of(file.read_bytes()).nodes] == ["EPContext"]
    names = sorted(graph.name for graph in bundle.graphs("target", "verify"))
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    with pytest.raises(ProviderFailed, match="enable_htp_prepare_only"):
        on.open(job(bundle, graph, None, SNAPDRAGON_X))


@pytest.mark.parametrize("platform", ["4000", "5010"])
def test_openvinos_virtual_npus_claim_every_node(tiny: Path, platform: str) -> None:
    package = pytest.importorskip(
        "onnxruntime_ep_openvino",
        reason="onnxruntime-ep-openvino is not installed here: no part of the tests' requirements",
    )
    name = "OpenVINOExecutionProvider"
    if not any(d.ep_metadata.get("npu_platform") for d in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library("openvino.virtual", package.get_library_path())
    virtual = Plugin(
        "virtual", name, "npu", False, "", fits=lambda d, *_: d.ep_metadata.get("npu_platform") == platform
    )
    load = '{"NPU": {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU"}}'
    bundle = open_bundle(tiny)
    graph = bundle.graphs("target", "verify")[1]
    opened = open_plugin(virtual, job(bundle, graph, None, {"load_config": load}))
    nodes = nodes_of(bundle.path(graph.file).read_bytes()).nodes
    assert dict(opened.placement) == {"virtual": len(nodes)}
