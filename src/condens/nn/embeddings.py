"""Numbers as piecewise-linear columns, for steps and thresholds that a smooth network blurs."""

import torch
from torch import Tensor, nn

from condens.scalars import as_whole

# Rows whose quantiles are taken; more would not move the edges.
MAX_ROWS = 50_000


class PiecewiseLinear(nn.Module):
    """Append to each column x its position in each of n bins.

        cⱼ = clamp((x − eⱼ)/(eⱼ₊₁ − eⱼ), 0, 1)

    A linear layer after it is any continuous function of x that is linear between the edges e
    (Gorishniy et al., "On embeddings for numerical features", 2022). `fit` places the edges at
    quantiles of the training rows, equal ones merged; a column with fewer than two bins, such as
    a flag, has none. Beyond the first and last edge nothing grows. Bins are centred, c − ½; one
    that does not exist is 0.

    Args:
        columns: C.
        bins: n, for each column.

    Shapes: [..., C] → [..., C + C·n].

    >>> embedding = PiecewiseLinear(columns=1, bins=2)
    >>> _ = embedding.fit(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> embedding(torch.tensor([[0.5], [2.0], [9.0]]))
    tensor([[ 0.5000,  0.0000, -0.5000],
            [ 2.0000,  0.5000,  0.0000],
            [ 9.0000,  0.5000,  0.5000]])
    """

    def __init__(self, columns: int, bins: int) -> None:
        super().__init__()
        self.columns = as_whole("columns", columns, 0, fix="Pass the number of numeric columns.")
        self.bins = as_whole("bins", bins, 1, fix="Pass the bins of a column, such as 24.")
        # The slope of a bin that does not exist is 0.
        self.edge = nn.Buffer(torch.zeros(self.columns, self.bins))
        self.slope = nn.Buffer(torch.zeros(self.columns, self.bins))

    @property
    def features(self) -> int:
        """How many columns come out."""
        return self.columns * (1 + self.bins)

    @torch.no_grad()
    def fit(self, values: Tensor) -> "PiecewiseLinear":
        """Take the edges from rows [n, C], or from the first C columns of them."""
        some = values[:: 1 + len(values) // MAX_ROWS, : self.columns].double()
        levels = some.new_tensor(self.levels)
        quantiles = [torch.quantile(column, levels) for column in some.unbind(1)]
        return self.take(torch.stack(quantiles) if quantiles else levels[:0, None])

    @property
    def levels(self) -> list[float]:
        """The levels of the quantiles between which the bins are."""
        return [number / self.bins for number in range(self.bins + 1)]

    @torch.no_grad()
    def take(self, quantiles: Tensor) -> "PiecewiseLinear":
        """Take the edges from quantiles of the columns at `levels` [C, bins + 1]."""
        self.edge.zero_()
        self.slope.zero_()
        for place, column in enumerate(quantiles[: self.columns]):
            # In the precision of the network: edges that are equal there have no bin between.
            edges = column.to(self.edge).unique()
            slope = (edges[1:] - edges[:-1]).reciprocal()
            if len(slope) > 1 and bool(slope.isfinite().all()):
                self.edge[place, : len(slope)], self.slope[place, : len(slope)] = edges[:-1], slope
        return self

    @property
    def side_by_side(self) -> bool:
        """Whether a column's bins begin where others end and come before those that are missing.

        So `take` places them; those of other origin may be anywhere.
        """
        there, ends = self.slope > 0, self.edge + self.slope.reciprocal()
        meet = (ends[:, :-1] - self.edge[:, 1:]).abs() <= 1e-3 * self.slope[:, 1:].reciprocal()
        return bool((there.diff(dim=1).logical_not() | there[:, :-1]).all()) and bool(
            (meet | ~there[:, 1:]).all()
        )

    def forward(self, values: Tensor) -> Tensor:
        """Return the columns and their bins."""
        position = ((values.unsqueeze(-1) - self.edge) * self.slope).clamp(0, 1)
        centred = position - 0.5 * (self.slope > 0).to(position.dtype)
        return torch.cat([values, centred.flatten(-2)], -1)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return f"columns={self.columns}, bins={self.bins}"
