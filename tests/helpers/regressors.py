"""Small regressors and the problems they are fitted to."""

import numpy as np
import pandas as pd
import torch
from torch import nn

from condens import MDNRegressor
from condens.nn import MLP
from condens.training import Settings

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
Y = np.stack([X[:, 0] - X[:, 1], 0.5 * X[:, 2] + X[:, 0]], 1) + 0.3 * RNG.normal(size=(240, 2))
MIXED = pd.DataFrame(
    {
        "area": np.where(RNG.random(240) < 0.1, np.nan, X[:, 0]),
        "town": pd.Categorical(RNG.choice(["Bern", "Köln", "Łódź"], 240)),
        "new": X[:, 1] > 0,
    }
)
NAMED = pd.DataFrame(np.exp(Y), columns=["price", "größe"])


def regressor(n_components=2, **options):
    """Return one that is fitted in a tenth of a second."""
    return MDNRegressor(
        **{
            "n_components": n_components,
            "width": 8,
            "depth": 2,
            "shortcut": False,
            "n_members": 1,
            "settings": Settings(epochs=3),
            "random_state": 0,
            **options,
        }
    )


class Bent(nn.Module):
    """A backbone that condens does not know."""

    def __init__(self, columns, features=5):
        super().__init__()
        self.linear, self.features = nn.Linear(columns, features), features
        self.register_buffer("calls", torch.tensor(3))

    def forward(self, condition):
        return torch.sin(self.linear(condition))


def deep(columns):
    """Return a backbone that condens knows, of another form than the estimator makes."""
    return MLP(columns, 6, 3, normalise=True)
