"""What a benchmark is asked to do.

Enters: values of the command line. Leaves: a frozen `Settings`, checked as far as no model is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spec_edge.models.contract import BadUsage
from spec_edge.runtime.bench import own, peer
from spec_edge.runtime.bench.machine import physical_cores


@dataclass(frozen=True)
class Settings:
    """questions: a file, or None for the shipped set. out: a folder, or None to print only.

    weights, draft_weights  the files that the bundles were made from; peers need them
    threads                 None: one per physical core, for everybody
    """

    model: str
    questions: Path | None = None
    methods: str = "all"
    max_new_tokens: int = 128
    temperature: float = 0.0
    repeat: int = 3
    limit: int | None = None
    peers: str = "none"
    out: Path | None = None
    provider: str = "cpu"
    threads: int | None = None
    draft: str | None = None
    weights: Path | None = None
    draft_weights: Path | None = None
    peer_python: tuple[str, ...] = ()

    @property
    def thread_count(self) -> int:
        return physical_cores() if self.threads is None else self.threads

    def check(self) -> None:
        """BadUsage for what makes no sense."""
        own.methods(self.methods)
        if self.repeat < 1:
            raise BadUsage(f"repeat must be at least 1, not {self.repeat}")
        if self.max_new_tokens < 2:
            raise BadUsage(
                f"max-new-tokens must be at least 2, so that something is decoded, not {self.max_new_tokens}"
            )
        peers = peer.wanted(self.peers)
        peer.interpreters(self.peer_python)
        if peers and self.temperature > 0:
            raise BadUsage("peers are compared greedy; leave --temperature out, or --peers")
        if peers and self.weights is None:
            raise BadUsage(
                "peers need the weights that the bundle was made from: --weights FILE (GGUF or Hugging Face folder)"
            )
