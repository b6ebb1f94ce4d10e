"""directml: any GPU with DirectX 12, on Windows. Static portable graphs. Untested on hardware.

Options: device_id, performance_preference, device_filter.
"""

from __future__ import annotations

from spec_edge.runtime.providers._plugin import Plugin, provider_of

PROVIDER = provider_of(
    Plugin(
        name="directml",
        compiles=False,
        ep="DmlExecutionProvider",
        device="gpu",
        symbolic=False,
        install="pip uninstall onnxruntime, then pip install onnxruntime-directml (Windows)",
        builtin=True,
    )
)
