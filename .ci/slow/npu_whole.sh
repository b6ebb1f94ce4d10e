#!/usr/bin/env bash
# npu_whole.sh WORK SMOLLM2.gguf QWEN.gguf EAGLE MEDUSA: the tables of docs/targets.md, from weights to Markdown.
# Exports whole models in the precisions of the NPU targets, compiles every fixed-width graph with the real compilers and
# rewrites the tables. May be interrupted and run again: a graph is not compiled twice. An hour or more on two cores.
# Needs .ci/npu_cut.py to have run (it installs the compilers), and SPEC_EDGE_QNN_PYTHON, a Python with onnxruntime-qnn.
set -euo pipefail
work=${1:?usage: npu_whole.sh WORK SMOLLM2.gguf QWEN.gguf EAGLE MEDUSA} smollm2=$2 qwen=$3 eagle=$4 medusa=$5
root=$(cd "$(dirname "$0")/../.." && pwd) python=${PYTHON:-$root/.venv/bin/python}
rows=$root/docs/npu-rows.jsonl
bundle() { # NAME MODEL OPTIONS...: made unless it is there
  [[ -f $work/$1/bundle.json ]] || "$python" -m spec_edge.export "$2" -o "$work/$1" --context 1152 "${@:3}"
}
compile() { # NAME OPTIONS...
  "$python" "$root/.ci/slow/npu_compile.py" "$rows" "$work/$1" "${@:2}" || echo "npu_whole: a graph of $1 does not compile" >&2
}
# Each NPU's target holds two widths at most; its float16 activations are what its compiler must see.
int8=(--target meteor-lake --precision int8-channel)
bundle smollm2-int8-channel "$smollm2" "${int8[@]}" --widths 1,8 --eagle "$eagle" --medusa "$medusa"
for width in 4 16 32; do bundle "smollm2-int8-channel-$width" "$smollm2" "${int8[@]}" --widths "1,$width"; done
bundle smollm2-fp16 "$smollm2" --precision fp16 --widths 1,4,8,16,32 --eagle "$eagle" --medusa "$medusa"
bundle qwen-int8-channel "$qwen" "${int8[@]}" --widths 1,8
bundle qwen-fp16 "$qwen" --precision fp16 --widths 1,8
for name in smollm2-int8-channel smollm2-int8-channel-{4,16,32}; do compile "$name" --targets 3720,4000,5010 --graphs '*-p1152,medusa*'; done
compile smollm2-fp16
compile qwen-int8-channel --targets 3720,4000,5010 --graphs 'verify-*-s8-*,prefill-*'
compile qwen-fp16 --targets qnn --graphs 'verify-*-s8-*,prefill-*'
"$python" "$root/.ci/slow/npu_table.py" "$rows" "$root/docs/targets.md"
