"""openvino_text.py BUNDLE [--half] [--cut] [--prompts N] [--tokens N] [--width W]: texts through OpenVINO's NPU plugin.

The bundle's static graphs, the target's and the drafters', run through the NPU plugin with its parts on the CPU
(NPU_USE_NPUW=YES, NPUW_DEVICES=CPU): no NPU is needed, and speed says nothing. In float32 every greedy text (plain,
lookahead and each drafter inside) must be that of the same graphs on ONNX Runtime's CPU provider, token for token,
unless they part where its two best logits are closer than 1e-3. --half, for float16 graphs: the law of each next token
of the reference's text is compared (KL at most 0.02, top-1 at least 0.95), and texts are counted. --cut: the plugin
cuts graphs into parts as it does by itself, with float16 between them.
Prints a Markdown table; exit code 1 where something differs by more.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from spec_edge.runtime.bundle import Bundle, open_bundle
from spec_edge.runtime.divergence import first_difference
from spec_edge.runtime.draft import Draft
from spec_edge.runtime.drafters.options import DrafterOptions
from spec_edge.runtime.engine import Engine, Limits
from spec_edge.runtime.hybrid import create
from spec_edge.runtime.protocols import Session
from spec_edge.runtime.providers.opening import opener
from spec_edge.runtime.providers.provider import provider
from spec_edge.runtime.quality import log_softmax
from spec_edge.runtime.sampling import Sampler, Sampling
from spec_edge.runtime.sessions.choose import open_network
from spec_edge.runtime.sessions.static import StaticSession
from spec_edge.runtime.text import Text

OVER_CPU = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU"}
EXACT = {**OVER_CPU, "NPUW_F16IC": "NO", "INFERENCE_PRECISION_HINT": "f32"}
REFERENCE = {"session.qdq_matmulnbits_accuracy_level": "0"}
"""ONNX Runtime would round activations to 8 bits before weights behind DequantizeLinear."""

CUT = {"NPUW_ONLINE_PIPELINE": "REG"}
NEAR, MOST_KL, LEAST_TOP1 = 1e-3, 0.02, 0.95
BUILTIN = ("plain", "lookahead")
PROMPTS = (
    "Repeat after me, three times: the quick brown fox jumps over the lazy dog.",
    "What is 17 times 23? Show the steps.",
    "Write a short poem about the sea.",
    "Write a Python function that reverses a list, and explain it.",
)


@dataclass(frozen=True)
class Written:
    """A text: the prompt's ids, the new ones, verify runs."""

    prompt: list[int]
    new: list[int]
    steps: int


class Place:
    """A bundle on a provider. Sessions are opened once."""

    def __init__(self, bundle: Bundle, name: str, options: Mapping[str, str], tokens: int, width: int) -> None:
        self._bundle, self._on = bundle, provider(name)
        self._opener = opener(bundle, self._on, 1, options)
        self.session: Session = StaticSession(bundle, self._opener)
        facts = bundle.manifest.text
        self._limits = Limits(tokens, facts.eos_ids, facts.tokens, width)
        self._sampler = Sampler(Sampling(), facts.eos_ids, facts.tokens)

    def texts(self, method: str, prompts: Sequence[list[int]]) -> list[Written]:
        """The greedy text of each prompt."""
        networks = {}
        if method not in BUILTIN:
            networks[method] = open_network(method, self._bundle, self._on, self._opener)
        written = []
        for ids in prompts:
            drafter = create(method, DrafterOptions(sampler=self._sampler, networks=networks))
            engine = Engine(self.session, drafter, Sampling(), self._limits)
            for _ in engine.generate(ids):
                pass
            written.append(Written(ids, engine.ids[len(ids) :], engine.stats.steps))
        for network in networks.values():
            network.close()
        return written

    def logits(self, text: Written, width: int) -> NDArray[np.float32]:
        """Of each new token's place, in runs of `width` rows."""
        self.session.wants = frozenset()
        self.session.truncate(0)
        rows = [self.session.prefill(text.prompt).logits.copy()]
        for at in range(0, len(text.new) - 1, width):
            chunk = text.new[at : min(at + width, len(text.new) - 1)]
            rows.append(self.session.verify(chunk[0], Draft.chain(chunk[1:])).logits[: len(chunk)].copy())
            self.session.commit(range(len(chunk)))
        return np.concatenate(rows)


def same(place: Place, want: Written, found: Written, width: int) -> str:
    """ "" where they are the same, "near" where they part at a near-tie, else where they part."""
    at = first_difference(want.new, found.new)
    if at is None:
        return ""
    best = np.sort(place.logits(want, width)[at])
    margin = float(best[-1] - best[-2])
    return "near" if margin < NEAR else f"token {at}, margin {margin:.2g}"


def law(reference: Place, other: Place, texts: Sequence[Written], width: int) -> tuple[float, float, float]:
    """(KL, top-1, largest difference of a logit) over the reference's own texts."""
    pairs = [(reference.logits(t, width), other.logits(t, width)) for t in texts]
    a, b = (np.concatenate(side) for side in zip(*pairs, strict=True))
    p, q = log_softmax(a).astype(np.float64), log_softmax(b).astype(np.float64)
    top1 = float((a.argmax(1) == b.argmax(1)).mean())
    return float((np.exp(p) * (p - q)).sum(1).mean()), top1, float(np.abs(a - b).max())


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--half", is_flag=True)
@click.option("--cut", is_flag=True)
@click.option("--prompts", default=len(PROMPTS))
@click.option("--tokens", default=48)
@click.option("--width", default=8)
def main(folder: Path, half: bool, cut: bool, prompts: int, tokens: int, width: int) -> None:
    bundle = open_bundle(folder)
    reference = Place(bundle, "cpu", REFERENCE, tokens, width)
    other = Place(bundle, "openvino-npu", {**(OVER_CPU if half else EXACT), **(CUT if cut else {})}, tokens, width)
    encode = Text(bundle).encode_chat
    asked = [encode([{"role": "user", "content": text}]) for text in PROMPTS[:prompts]]
    plain = reference.texts("plain", asked)
    good = True
    print(
        "| method | texts | the same | at a near-tie | tokens | verify runs | parted |\n|---|---|---|---|---|---|---|"
    )
    for method in (*BUILTIN, *(d.name for d in bundle.manifest.drafters)):
        found = other.texts(method, asked)
        ends = [same(reference, want, text, width) for want, text in zip(plain, found, strict=True)]
        parted = [end for end in ends if end not in ("", "near")]
        sizes = f"{sum(len(t.new) for t in found)} | {sum(t.steps for t in found)}"
        print(f"| {method} | {len(ends)} | {ends.count('')} | {ends.count('near')} | {sizes} | {'; '.join(parted)} |")
        sys.stdout.flush()
        good &= half or not parted
    kl, top1, most = law(reference, other, plain, width)
    print(f"\nlaw of the next token: KL {kl:.2g}, top-1 {top1:.3f}, largest difference of a logit {most:.2g}")
    sys.exit(int(not (good and kl <= MOST_KL and top1 >= LEAST_TOP1)))


if __name__ == "__main__":
    main()
