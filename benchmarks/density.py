"""Time of the negative log-likelihood, forward and backward, side by side with peers.

Every contender starts from the same logits, means and packed factors, in one process; the
rounds are interleaved and the best of each counts. (torch's scale_tril reads the numbers as
a factor of the covariance: another density, the same amount of work.) Prints a markdown
table, the peers' times in units of condens'.

    python benchmarks/density.py [--threads 1] [--rounds 15]
"""

import argparse
import math
import time
from collections.abc import Callable

import torch
from FrEIA.modules import GaussianMixtureModel
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from condens.functional import nll, packed_size, unpack

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def freia(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """FrEIA's block and its loss, which lacks the constant."""
    dimensions = target.shape[-1]
    block = GaussianMixtureModel([(dimensions,)], [])
    weights = block.normalize_weights(logits)
    (latent,), log_jacobian = block([target], [weights, means, factors, None])
    constant = 0.5 * dimensions * math.log(2 * math.pi)
    return block.nll_loss(weights, latent, log_jacobian) + constant


def torch_precision(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """torch.distributions, given the precision matrices."""
    upper = unpack(factors, target.shape[-1])
    components = MultivariateNormal(means, precision_matrix=upper.mT @ upper, validate_args=False)
    weights = Categorical(logits=logits, validate_args=False)
    return -MixtureSameFamily(weights, components, validate_args=False).log_prob(target)


def torch_scale_tril(target: Tensor, logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
    """torch.distributions, which reads the same numbers as a factor of the covariance."""
    lower = unpack(factors, target.shape[-1]).mT
    components = MultivariateNormal(means, scale_tril=lower, validate_args=False)
    weights = Categorical(logits=logits, validate_args=False)
    return -MixtureSameFamily(weights, components, validate_args=False).log_prob(target)


CONTENDERS: dict[str, Loss] = {
    "condens": nll,
    "FrEIA 0.2": freia,
    "torch scale_tril": torch_scale_tril,
    "torch precision": torch_precision,
}


def measure(batch: int, components: int, dimensions: int, rounds: int) -> dict[str, float]:
    """Return the best time of each contender in seconds."""
    torch.manual_seed(0)
    target = torch.randn(batch, dimensions)
    parameters = [
        torch.randn(batch, components),
        torch.randn(batch, components, dimensions),
        0.1 * torch.randn(batch, components, packed_size(dimensions)),
    ]
    best = dict.fromkeys(CONTENDERS, math.inf)
    for _ in range(rounds):
        for name, loss in CONTENDERS.items():
            inputs = [p.clone().requires_grad_() for p in parameters]
            start = time.perf_counter()
            loss(target, *inputs).mean().backward()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peers = [name for name in CONTENDERS if name != "condens"]
    print(f"K = 5, float32, {options.threads} thread(s), best of {options.rounds}\n")
    print(f"| B, D | condens, ms | {' | '.join(peers)} |")
    print("|---|" + "---|" * len(CONTENDERS))
    for batch in (256, 4096):
        for dimensions in (1, 2, 5, 10, 20):
            best = measure(batch, 5, dimensions, options.rounds)
            ratios = [f"{best[name] / best['condens']:.2f}" for name in peers]
            own = f"{1e3 * best['condens']:.2f}"
            print(f"| {batch}, {dimensions} | {own} | {' | '.join(ratios)} |", flush=True)


if __name__ == "__main__":
    main()
