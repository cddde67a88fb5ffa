"""The negative log-likelihood and its gradient, fused: what training runs.

Two interchangeable implementations, with the answers of `condens.functional.log_prob`:
*native*, in C, for float32 and float64 on a CPU, whose sums are in double precision; and
*eager*, in plain torch, for any device, whose sums have the precision of the tensors. The
environment variable CONDENS_KERNEL forces one of `native`, `eager` and `reference`. Large
buffers are kept for the next call; `release` gives them back.
"""

from condens.kernels.choice import active
from condens.kernels.dispatch import nll, weighted_nll
from condens.kernels.head import linear_nll
from condens.kernels.memory import release

__all__ = ["active", "linear_nll", "nll", "release", "weighted_nll"]
