"""Muon: momentum whose update is orthogonalised, for the matrices of the tower's layers (float32, CPU)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonalise(update: Tensor, steps: int = 4) -> Tensor:
    """The nearest matrix with singular values about one, by Newton-Schulz iteration."""
    tall = update.shape[0] > update.shape[1]
    x = update.T if tall else update
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay; needs far fewer pictures than AdamW here."""

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.02, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(matrix)
                state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
                update = orthogonalise(matrix.grad.lerp(state["momentum"], group["momentum"]))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.add_(update, alpha=-group["lr"] * scale)
