"""The network of the training step, and linear heads with their loss."""

from collections.abc import Callable

import torch
from contenders import Contender
from torch import Tensor, nn

from condens import functional


def split(
    outputs: Tensor, n_components: int, dimensions: int, *, batch_last: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """View outputs [b, P], or [P, b] if batch-last, as logits, means and packed factors."""
    axis = 0 if batch_last else -1
    packed = outputs.shape[axis] // n_components - 1 - dimensions
    sizes = [n_components, n_components * dimensions, n_components * packed]
    logits, means, factors = outputs.split(sizes, axis)
    means = means.unflatten(axis, (n_components, dimensions))
    factors = factors.unflatten(axis, (n_components, packed))
    if batch_last:
        return logits.T, means.permute(2, 0, 1), factors.permute(2, 0, 1)
    return logits, means, factors


class Network(nn.Module):
    """An MLP 10-128-128 and a linear head."""

    def __init__(self, n_components: int, dimensions: int) -> None:
        super().__init__()
        self.n_components, self.dimensions = n_components, dimensions
        packed = dimensions * (dimensions + 1) // 2
        self.body = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.head = nn.Linear(128, n_components * (1 + dimensions + packed))
        nn.init.normal_(self.head.weight, std=0.01)

    def loss(self, contender: Contender, condition: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a contender."""
        features = self.body(condition)
        if contender.batch_last:
            outputs = torch.addmm(self.head.bias.unsqueeze(1), self.head.weight, features.T)
        else:
            outputs = self.head(features)
        sizes = self.n_components, self.dimensions
        return contender.loss(target, *split(outputs, *sizes, batch_last=contender.batch_last))

    def chunked_loss(self, condition: Tensor, target: Tensor) -> Tensor:
        """Return condens' loss, head and kernel together."""
        features, head = self.body(condition), self.head
        return functional.linear_loss(features, head.weight, head.bias, target, self.n_components)

    def floor(self, condition: Tensor) -> Tensor:
        """Return a loss that costs next to nothing."""
        return self.head(self.body(condition)).sum()


class Head:
    """A linear layer of F features, K components and D dimensions, and its loss."""

    def __init__(self, batch: int, n_components: int, dimensions: int, features: int) -> None:
        outputs = n_components * (1 + dimensions + dimensions * (dimensions + 1) // 2)
        self.n_components = n_components
        self.target = torch.randn(batch, dimensions)
        self.inputs = (
            torch.randn(batch, features),
            0.01 * torch.randn(outputs, features),
            torch.zeros(outputs),
        )

    @property
    def bytes(self) -> int:
        """The size of features, weight and bias, and so of their gradients."""
        return sum(t.nbytes for t in self.inputs)

    def job(self, *, chunked: bool) -> Callable[[], object]:
        """Return the work: the loss and the gradients of features, weight and bias."""

        def loss_and_gradients() -> None:
            leaves = [t.detach().requires_grad_() for t in self.inputs]
            features, weight, bias = leaves
            if chunked:
                loss = functional.linear_loss(
                    features, weight, bias, self.target, self.n_components
                )
            else:
                outputs = nn.functional.linear(features, weight, bias)
                parts = split(outputs, self.n_components, self.target.shape[-1])
                loss = functional.loss(self.target, *parts)
            torch.autograd.grad(loss, leaves)

        return loss_and_gradients
