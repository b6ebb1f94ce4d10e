"""Texts one behind another, as training and measuring read them.

Row r of a text of n tokens is where a drafter has seen the target's state of token r and the token r + 1: it predicts
token r + 2, and in further steps r + 3 and so on. A step of verification whose pending token is r + 1 begins there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spec_edge.export.train.generate import Generated


@dataclass(frozen=True)
class Packed:
    """T texts of N tokens and R = N - T rows in all.

    ids     [N]
    taps    [R, T * H], hidden [R, H]: the target's, of every token but each text's last
    first   row of each text's first token, and R; the token's own place is row + number of the text
    starts  rows of the answers, at which something can be predicted, [C]; text: of each, which text
    ends    of each start, how many tokens behind its first prediction the text goes on
    """

    ids: Tensor
    taps: Tensor
    hidden: Tensor
    first: tuple[int, ...]
    starts: Tensor
    text: Tensor
    ends: Tensor

    @property
    def positions(self) -> Tensor:
        """Of every row in its text, [R]."""
        spans = zip(self.first[:-1], self.first[1:], strict=True)
        return torch.cat([torch.arange(b - a) for a, b in spans]).to(self.ids.device)

    def token(self, starts: Tensor, text: Tensor, ahead: int) -> Tensor:
        """Ids `ahead` tokens behind those that these rows have seen."""
        return self.ids[starts + text + ahead]


def pack(texts: Sequence[Generated], device: torch.device) -> Packed:
    """On `device`, features in float32."""
    first, starts, text, ends = [0], [], [], []
    for number, one in enumerate(texts):
        n = len(one.ids)
        rows = torch.arange(max(one.prompt - 1, 0), n - 2)
        starts.append(rows + first[-1])
        text.append(torch.full_like(rows, number))
        ends.append(n - 3 - rows)
        first.append(first[-1] + n - 1)
    return Packed(
        ids=torch.tensor([i for one in texts for i in one.ids], device=device),
        taps=torch.cat([one.taps for one in texts]).to(device).float(),
        hidden=torch.cat([one.hidden for one in texts]).to(device).float(),
        first=tuple(first),
        starts=torch.cat(starts).to(device),
        text=torch.cat(text).to(device),
        ends=torch.cat(ends).to(device),
    )
