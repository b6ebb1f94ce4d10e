"""What a benchmark is asked to do.

Enters: values of the command line. Leaves: a frozen `Settings`, checked as far as no model is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from spec_edge.models.contract import BadUsage
from spec_edge.runtime import request
from spec_edge.runtime.bench import own, peer
from spec_edge.runtime.bench.machine import physical_cores
from spec_edge.runtime.options import Options

CURVE_READS = ("model", "out", "threads")
MOST_REPEATS = 100
PEERS_READ = ("weights", "draft_weights", "peer_python", "peers_at_once")


@dataclass(frozen=True)
class Settings:
    """questions: a file, or None for the shipped set. out: a folder, or None to print only.

    weights, draft_weights  the files that the bundles were made from; peers need them
    threads                 None: one per physical core, for everybody
    peers_at_once           most peers that are in memory together; None: all
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
    provider: str = "auto"
    threads: int | None = None
    draft: str | None = None
    weights: Path | None = None
    draft_weights: Path | None = None
    peer_python: tuple[str, ...] = ()
    peers_at_once: int | None = None

    @property
    def thread_count(self) -> int:
        return physical_cores() if self.threads is None else self.threads

    def check_read(self, curve: bool) -> None:
        """BadUsage for a setting that nobody would read. curve: only t(width) is asked for."""
        given = [f.name for f in fields(self) if f.name != "model" and getattr(self, f.name) != f.default]
        unread = [name for name in given if name not in CURVE_READS] if curve else []
        if unread:
            raise BadUsage(
                f"--curve runs every graph by itself and reads no {_shown(unread[:1])}; leave out {_shown(unread)}"
            )
        if self.threads is not None and self.threads < 1:
            raise BadUsage(f"threads must be at least 1, not {self.threads}")
        for_peers = [name for name in given if name in PEERS_READ]
        if for_peers and not peer.wanted(self.peers):
            raise BadUsage(f"only peers read {_shown(for_peers)}; name some with --peers, or leave it out")

    def check(self) -> None:
        """BadUsage for what makes no sense."""
        own.methods(self.methods)
        request.check(Options(temperature=self.temperature))
        if not 1 <= self.repeat <= MOST_REPEATS:
            raise BadUsage(f"repeat must be 1 to {MOST_REPEATS}, not {self.repeat}")
        if self.max_new_tokens < 2:
            raise BadUsage(
                f"max-new-tokens must be at least 2, so that something is decoded, not {self.max_new_tokens}"
            )
        if self.peers_at_once is not None and self.peers_at_once < 1:
            raise BadUsage(f"peers-at-once must be at least 1, not {self.peers_at_once}")
        peers = peer.wanted(self.peers)
        peer.interpreters(self.peer_python)
        if peers and self.temperature > 0:
            raise BadUsage("peers are compared greedy; leave --temperature out, or --peers")
        if peers and self.weights is None:
            raise BadUsage(
                "peers need the weights that the bundle was made from: --weights FILE (GGUF or Hugging Face folder)"
            )


def _shown(names: list[str]) -> str:
    """Fields as the options that they are."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
