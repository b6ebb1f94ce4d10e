#!/usr/bin/env bash
# compile.sh MODEL.onnx PLATFORM [OUT.blob]: does Intel's own NPU compiler accept this graph?
# PLATFORM: 3720 Meteor/Arrow Lake, 4000 Lunar Lake, 5010 Panther Lake. Runs the Windows compiler under Wine; no NPU needed.
# Needs Debian's wine and mingw-w64 (apt-get install -y wine wine64 gcc-mingw-w64-x86-64) and a Python with pip (PYTHON, else python3),
# which fetches the compiler's files pinned by SHA-256 (compiler.txt). Proves compilation, not numerics or speed.
# Prints the compiler's errors, the seconds and the blob's size; exit 0 when it compiled. A run that dies before the compiler has answered (seen once
# in about 200, exit 1) is repeated, at most twice, and said.
# ESTIMATE=1 also prints the compiler's own cost-model estimate of one inference (microseconds at the stated clock) and leaves
# compileTimeScheduleTrace.json (a Chrome trace of every DMA, DPU and SHAVE task) in the current folder. It is an estimate, not a
# measurement: SHAVE kernels that its model lacks (RMS norm, RoPE ...) count as zero; the log names them.
set -euo pipefail
model=$(realpath "${1:?usage: compile.sh MODEL.onnx PLATFORM [OUT.blob]}") platform=${2:?PLATFORM: 3720, 4000 or 5010}
here=$(cd "$(dirname "$0")" && pwd)
cache=${SPEC_EDGE_NPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spec-edge-npu-compiler}
version=2026.4.1 python=${PYTHON:-python3}
libs=$cache/$version/openvino/libs
if [[ ! -f $libs/.ready ]]; then
  mkdir -p "$cache/$version"; tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
  "$python" -m pip download -q --no-deps --only-binary=:all: --platform win_amd64 --python-version 3.11 --implementation cp \
    -d "$tmp" --require-hashes -r "$here/compiler.txt" >&2
  "$python" - "$tmp" "$cache/$version" <<'PY'
import pathlib, sys, zipfile
src, dst = map(pathlib.Path, sys.argv[1:])
for wheel in src.glob("*.whl"):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if wheel.name.startswith("openvino") and name.startswith("openvino/libs/"):
                z.extract(name, dst)
            elif wheel.name.startswith("msvc") and name.endswith(".dll"):
                (dst / "openvino/libs").mkdir(parents=True, exist_ok=True)
                (dst / "openvino/libs" / pathlib.Path(name).name).write_bytes(z.read(name))
PY
  touch "$libs/.ready"
fi
exe=$cache/$version/npu_compile.exe
[[ $exe -nt $here/npu_compile.c ]] || x86_64-w64-mingw32-gcc -O1 -o "$exe" "$here/npu_compile.c"
out=${3:-$cache/last.blob}; rm -f "$out"; mkdir -p "$(dirname "$out")"; out=$(realpath -m "$out")
win() { printf 'Z:%s' "${1//\//\\}"; }
export WINEPREFIX=$cache/wine WINEDEBUG=-all OPENVINO_LIBS; OPENVINO_LIBS=$(win "$libs")
properties=("NPU_PLATFORM=$platform" NPU_COMPILER_TYPE=PLUGIN LOG_LEVEL=LOG_ERROR)
wanted='ERROR|^compile|^read|^core|^load|^export|msg:|failed'
if [[ ${ESTIMATE:-} ]]; then
  properties=("NPU_PLATFORM=$platform" NPU_COMPILER_TYPE=PLUGIN LOG_LEVEL=LOG_INFO "NPU_COMPILATION_MODE_PARAMS=enable-schedule-trace=true")
  wanted+='|Estimated inference latency|unsupported by VPUNN|Activity Factor'
fi
log=$(mktemp) said=$(mktemp)
for attempt in 1 2 3; do
  code=0
  timeout "${TIMEOUT_S:-600}" wine "$exe" "$(win "$model")" "$(win "$out")" "${properties[@]}" >"$log" 2>"$said" || code=$?
  # an answer about the graph is success, npu_compile's own message, or the time limit; all else is Wine's or the compiler's death
  if [[ $code == 0 || $code == 124 ]] || grep -qE '^(load|core|read|compile|export): ' "$log"; then break; fi
  echo "npu $platform: attempt $attempt ended with $code before an answer: $(tr -d '\r' <"$said" | tail -n 3 | tr '\n' ' ')" >&2
  sleep "$attempt"
done
tr -d '\r' <"$log" | grep -E "$wanted" || true; rm -f "$log" "$said"
[[ $code == 0 && -s $out ]] || { echo "npu $platform: not compiled (exit $code)"; exit 1; }
echo "npu $platform: compiled, blob $(stat -c %s "$out") bytes"
