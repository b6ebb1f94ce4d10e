"""qnn_compile.py MODEL.onnx [OUT.bin]: does Qualcomm's own HTP compiler accept this graph for Snapdragon X?

Needs onnxruntime 1.32 and onnxruntime-qnn 2.7 on Linux x86-64 (offline preparation; no NPU is used). CPU fallback is
disabled, so success means that every node went into the context binary. Proves acceptance, not numerics or speed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import onnxruntime as ort
import onnxruntime_qnn as qnn

SNAPDRAGON_X = {"soc_model": "60", "htp_arch": "73"}


def compile_model(model: Path, folder: Path) -> Path:
    """The context binary of `model`, written into `folder`."""
    ort.register_execution_provider_library("QNNExecutionProvider", qnn.get_library_path())
    devices = [d for d in ort.get_ep_devices() if d.ep_name == "QNNExecutionProvider"]
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(folder / "context.onnx"))
    provider = {"backend_path": qnn.get_qnn_htp_path(), "enable_htp_prepare_only": "1", **SNAPDRAGON_X}
    options.add_provider_for_devices(devices[:1], provider)
    ort.InferenceSession(str(model), options)
    return max(folder.glob("*.bin"), key=lambda path: path.stat().st_size)


def main() -> int:
    model = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        try:
            binary = compile_model(model, Path(scratch))
        except Exception as error:
            print(f"qnn snapdragon_x: not compiled: {str(error)[:300]}")
            return 1
        seconds = time.perf_counter() - start
        print(f"qnn snapdragon_x: compiled in {seconds:.1f} s, {binary.stat().st_size} bytes")
        if len(sys.argv) > 2:
            shutil.move(binary, sys.argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
