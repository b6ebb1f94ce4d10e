"""a16w8: weights as in int8-channel; what each projection reads is rounded to 16 bits, for AMD's Ryzen AI.

One step for a tensor, from the largest magnitude on the check text. Norms, residual, attention and lm_head's input stay
in floats: SmolLM2's residual reaches 24,245 on a text's first token, which no 16-bit step for a whole tensor survives.
"""

from __future__ import annotations

from dataclasses import replace

from spec_edge.models.schemes import int8_channel

STEPS = 32767

SCHEME = replace(int8_channel.SCHEME, name="a16w8", opset=17, steps=STEPS)
