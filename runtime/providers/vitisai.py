"""vitisai: AMD's NPU (Ryzen AI) through Windows ML or AMD's own build of ONNX Runtime. Static portable graphs only.

Untested on hardware, and nothing of it can be had without AMD's installer or Windows ML.
Options: ryzenai.docs.amd.com, "Model Compilation and Deployment" (config_file, target, cache_dir, cache_key).
"""

from __future__ import annotations

from spec_edge.runtime.providers._plugin import Plugin, provider_of

PROVIDER = provider_of(
    Plugin(
        name="vitisai",
        ep="VitisAIExecutionProvider",
        device="npu",
        symbolic=False,
        install="get it through Windows ML (pip install windowsml) or install AMD's Ryzen AI software",
        builtin=True,
    )
)
