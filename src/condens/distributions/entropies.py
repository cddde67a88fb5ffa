"""What an average of densities leaves open, and how much of it its members disagree about."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from condens.distributions import checks
from condens.distributions.base import Mixture
from condens.errors import ArgumentError
from condens.functional.estimates import Estimate, categorical_entropy, standard_error


class Entropies(NamedTuple):
    """The entropy of each density of a batch, in nats, and its two parts.

    total H(Y) = aleatoric H(Y | m) + epistemic I(Y; m),  m the member that Y is drawn from

    Args:
        aleatoric: the mean entropy of the members: what more rows like those would not change.
        epistemic: how much a draw tells of the member it comes from, from 0, where all agree, to
            log M: what the members disagree about. Of one member it is 0 by definition, which
            does not say that the density is known.
        total: the entropy of the average, the sum of both.

    Differential entropies are of densities in the units of the targets and may be negative; those
    of whole numbers are not.
    """

    aleatoric: Estimate
    epistemic: Estimate
    total: Estimate


def entropies(
    density: Mixture,
    sizes: Sequence[int],
    *,
    n_samples: int = 1000,
    generator: Generator | None = None,
) -> Entropies:
    """Estimate the entropies of densities whose first sizes[0] components are a member, and so on.

    With k the component that Y is drawn from and Hₖ its entropy, which is exact,

    aleatoric = Σₖ πₖ Hₖ + H(k | m) − H(k | Y, m),  epistemic = H(m) − H(m | Y)

    and only what a draw leaves open about component and member is estimated, from the same draws:
    so the sum holds exactly, and the epistemic part is never negative where members have equal
    weights. Of whole numbers Hₖ has no closed form, and the total is the mean of −log p(Y).

    >>> from condens import GaussianMixture
    >>> far = GaussianMixture(torch.zeros(2), torch.tensor([[-50.0], [50.0]]), torch.zeros(2, 1))
    >>> entropies(far, [1, 1]).epistemic.value
    tensor(0.6931)
    """
    if not sizes or min(sizes) < 1 or sum(sizes) != density.n_components:
        raise ArgumentError(
            "sizes",
            got=f"is {list(sizes)}",
            expected=f"the density has {density.n_components} components",
            fix="Pass how many of them each member has.",
        )
    count = checks.check_count("n_samples", n_samples)
    wide = density.to(torch.float64)
    with torch.no_grad():
        draws = wide.sample((count,), generator=generator)
        log_weights = torch.log_softmax(wide.logits, -1)
        joint = wide.component_log_prob(draws) + log_weights
        # Components beyond all numbers of a draw have no part in it.
        level = joint.logsumexp(-1, keepdim=True)
        posterior = joint - torch.where(level.isfinite(), level, 0.0)
        members = [_by_member(logs, sizes) for logs in (log_weights, posterior)]
        of_member, doubt_of_member = map(categorical_entropy, members)
        if len(sizes) == 1:
            of_member, doubt_of_member = (torch.zeros_like(t) for t in (of_member, doubt_of_member))
        epistemic = of_member - doubt_of_member
        alone = wide.component_entropies()
        if alone is None:
            aleatoric = -level.squeeze(-1) - epistemic
        else:
            exact = (log_weights.exp() * alone).sum(-1) + categorical_entropy(log_weights)
            doubt = categorical_entropy(posterior) - doubt_of_member
            aleatoric = exact - of_member - doubt
    return Entropies(
        *(_mean(part, density) for part in (aleatoric, epistemic, aleatoric + epistemic))
    )


def _by_member(log_probabilities: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the log probabilities of members. Shapes: [..., K] → [..., M]."""
    parts = log_probabilities.split(list(sizes), -1)
    return torch.stack([part.logsumexp(-1) for part in parts], -1)


def _mean(values: Tensor, density: Mixture) -> Estimate:
    error = standard_error(values)
    # What does not vary but in its last digits is exact.
    exact = error < 1e-12 * (1 + values.mean(0).abs()) / math.sqrt(len(values))
    return Estimate(values.mean(0), torch.where(exact, 0.0, error)).to(density.dtype)
