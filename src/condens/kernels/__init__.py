"""Fused loss and draws on raw tensors, in two interchangeable implementations.

*native*, in C, serves float32 and float64 on the CPU and sums in double precision; *eager*, in
plain torch, serves any device and sums in the precision of the tensors. Both give the answers of
`condens.functional.log_prob`. The environment variable CONDENS_KERNEL forces one of `native`,
`eager` and `reference`, which is plain autograd. Large buffers are kept for the next call;
`release` frees them.
"""

from condens.kernels.choice import active
from condens.kernels.memory import release

__all__ = ["active", "release"]
