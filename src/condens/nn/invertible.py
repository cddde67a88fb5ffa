"""The invertible block between targets and latent codes, for FrEIA's networks or alone.

It replaces FrEIA's `GaussianMixtureModel`: the same arguments in the same layouts, without a loop
over the batch, without inverses, and in any precision.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from condens.distributions.checks import check_log_scales
from condens.errors import ArgumentError, KindError, NotFiniteError, ShapeError
from condens.functional.fused_linear import Layout
from condens.functional.mixture import component_log_prob, log_total, longest
from condens.functional.normal import LOG_2PI
from condens.functional.precision import widen
from condens.functional.sampling import from_latent, pick
from condens.functional.tracing import anywhere
from condens.functional.triangular import as_full, log_determinant, packed_size, whiten
from condens.kernels.checks import check_shape
from condens.scalars import as_whole

try:
    from FrEIA.modules import InvertibleModule
except ModuleNotFoundError:
    InvertibleModule = nn.Module


class GaussianMixtureBlock(InvertibleModule):  # type: ignore[misc]
    """Map x to z = Ū(x − μ) and back, for a component of each row or for all of them.

    The condition holds the mixtures, in one of these forms:

    - `[w, mu, U, i]`, as in FrEIA: weights [b, K], means [b, K, D], packed factors
      [b, K, D(D+1)/2] or diagonal ones [b, K, D], and the choice i of components: `None` for
      all, a tensor [b] of indices, or a whole number as the seed of a random choice by weight.
      `[w, mu, U]` means `None`.
    - `[packed, i]` or `[packed]`: one tensor [b, K(1 + D + D(D+1)/2)] with the K logits, then
      the K means, then the K full factors, as a `FullHead` lays them out. `pack` makes one.
    - any of these as one condition, `[[w, mu, U, i]]`: `SequenceINN` passes on only one.

    FrEIA's networks add up one log-determinant for each row. In a chain with other blocks, choose
    one component; for the density of the whole mixture, apply the block to the output of the
    chain, and subtract the chain's log-determinant from `nll_loss`.

    The block has no parameters and no buffers: it works on the device and in the dtype of its
    arguments. Where FrEIA is installed it is a FrEIA `InvertibleModule`.

    Args:
        dims_in: the shape of the one input without the batch, [(D,)].
        dims_c: the shapes of the conditions; stored, not used.

    >>> block = GaussianMixtureBlock([(2,)], [])
    >>> w, mu, U = torch.ones(1, 1), torch.zeros(1, 1, 2), torch.tensor([[[0.0, 0.0, 5.0]]])
    >>> (z,), log_jacobian = block([torch.tensor([[1.0, 2.0]])], [w, mu, U, torch.tensor([0])])
    >>> z, log_jacobian
    (tensor([[11.,  2.]]), tensor([0.]))
    >>> block([z], [w, mu, U, torch.tensor([0])], rev=True)[0]
    [tensor([[1., 2.]])]
    """

    def __init__(
        self, dims_in: Sequence[Sequence[int]], dims_c: Sequence[Sequence[int]] | None = None
    ) -> None:
        shapes = [tuple(shape) for shape in dims_in]
        if len(shapes) != 1 or len(shapes[0]) != 1 or shapes[0][0] < 1:
            raise ShapeError(
                "dims_in",
                got=f"is {shapes}",
                expected="one input of D ≥ 1 numbers was expected, [(D,)]",
                fix="Join or flatten the inputs first, for example with FrEIA's Flatten.",
            )
        # As FrEIA's base class does, which is there only where FrEIA is installed.
        nn.Module.__init__(self)
        self.dims_in, self.dims_c = shapes, list(dims_c or ())
        self.dimensions = int(shapes[0][0])

    def forward(
        self,
        x: Sequence[Tensor],
        c: Tensor | Sequence[Any],
        rev: bool = False,
        jac: bool = True,  # noqa: ARG002
    ) -> tuple[list[Tensor], Tensor]:
        """Return [z] of [x], or [x] of [z] if `rev`, and the log-determinant of the Jacobian.

        The log-determinant is returned for `jac=False` too: it costs nothing. Shapes:
        x [b, D] → [b, D] and [b] with one component of each row; [b, D] or [b, K, D] →
        [b, K, D] and [b, K] with all.
        """
        w, means, factors, choice = _read(c, self.dimensions)
        given = _one_input(x, means, alone=choice is not None)
        if choice is not None:
            place = torch.arange(len(w), device=means.device), _indices(w, choice)
            means, factors = means[place], factors[place]
        elif given.dim() == 2:
            given = given.unsqueeze(1)
        log_jacobian = log_determinant(factors, self.dimensions)
        if rev:
            check_log_scales("U", "log-diagonal", factors[..., : self.dimensions])
            return [from_latent(given, means, factors)], -log_jacobian
        wide_x, wide_means, wide_factors = widen(given, means, factors)
        latent = whiten(wide_x - wide_means, wide_factors).to(torch.result_type(given, means))
        return [latent], log_jacobian

    def output_dims(self, input_dims: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """Return the shape of the output, that of the input."""
        return input_dims

    @staticmethod
    def pack(logits: Tensor, means: Tensor, factors: Tensor) -> Tensor:
        """Return mixtures as one condition; zeros fill diagonal factors up to full ones.

        For example `GaussianMixtureBlock.pack(*head.parameters_of(features))`. Shapes: logits
        [b, K], means [b, K, D], factors [b, K, T] → [b, K(1 + D + D(D+1)/2)].
        """
        return torch.cat(
            [logits, means.flatten(-2), as_full(factors, means.shape[-1]).flatten(-2)], -1
        )

    @staticmethod
    def normalize_weights(w: Tensor) -> Tensor:
        """Return the softmax of logits. Shapes: [..., K] → [..., K].

        >>> GaussianMixtureBlock.normalize_weights(torch.zeros(1, 4))
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
        """
        return torch.softmax(w, -1)

    @staticmethod
    def pick_mixture_component(w: Tensor, seed: int | None = None) -> Tensor:
        """Choose a component of each row by weight; the same ones for the same seed.

        The choices are FrEIA's for that seed and device, unless a threshold between two
        components lies within rounding, 10⁻⁷, of the random number. Without a seed they come from
        torch's generator, which `torch.manual_seed` sets. Shapes: w [b, K] → [b], int32.

        >>> GaussianMixtureBlock.pick_mixture_component(torch.tensor([[0.0, 1.0]]), seed=3)
        tensor([1], dtype=torch.int32)
        """
        _check_weights(w)
        generator = (
            None
            if seed is None
            else Generator(w.device).manual_seed(
                as_whole(
                    "seed",
                    seed,
                    -(2**63),
                    2**64 - 1,
                    fix="Pass an int of 64 bits, or None for torch's generator.",
                )
            )
        )
        coarse, fine = (
            torch.rand(len(w), 1, device=w.device, generator=generator) for _ in range(2)
        )
        # The 24 bits of a float32 alone would draw a weight of 10⁻⁹ far too often, or never.
        uniform = widen(coarse) + 0.5 * torch.finfo(coarse.dtype).eps * widen(fine)
        return pick(uniform.T, widen(w.detach()).cumsum(-1))[0].int()

    @staticmethod
    def nll_loss(
        w: Tensor, z: Tensor, log_jacobian: Tensor, *, freia_compatible: bool = False
    ) -> Tensor:
        """Return −log Σₖ wₖ N(zₖ; 0, I) exp(log_jacobianₖ), the exact negative log-likelihood.

        FrEIA's drops the constant (D/2) log 2π, and is infinite where the densities underflow.
        With `freia_compatible` the constant is dropped here too. A weight of zero counts for
        nothing and gets no gradient; nor does a code whose square overflows its dtype.

        Shapes: w [b, K], z [b, K, D], log_jacobian [b, K] → [b].
        """
        constant = 0.5 * z.shape[-1] * LOG_2PI if freia_compatible else 0.0
        return (-log_total(_joint(w, z, log_jacobian)) - constant).to(z.dtype)

    @staticmethod
    def nll_upper_bound(
        w: Tensor, z: Tensor, log_jacobian: Tensor, *, freia_compatible: bool = False
    ) -> Tensor:
        """Return −log K − (1/K) Σₖ (log wₖ + log pₖ), an upper bound of `nll_loss`.

        FrEIA's −Σₖ (log wₖ + log pₖ), which `freia_compatible` returns without the constant
        K (D/2) log 2π as there, is no bound. Both have the same minimiser, which makes all
        components the same: a warm-up at most. Shapes: as `nll_loss`.
        """
        joint = _joint(w, z, log_jacobian)
        if freia_compatible:
            return -(joint + 0.5 * z.shape[-1] * LOG_2PI).sum(-1).to(z.dtype)
        return (-math.log(w.shape[-1]) - joint.mean(-1)).to(z.dtype)


def _read(c: Tensor | Sequence[Any] | None, dimensions: int) -> tuple[Tensor, Tensor, Tensor, Any]:
    """Return w, mu, U and i of a condition in any of its forms."""
    parts = [c] if isinstance(c, Tensor) else list(c if c is not None else ())
    if len(parts) == 1 and isinstance(parts[0], list | tuple):
        parts = list(parts[0])
    if not 1 <= len(parts) <= 4:
        raise ArgumentError(
            "c",
            got=f"has {len(parts)} entries",
            expected="[w, mu, U, i], [packed, i] or [packed] was expected",
            fix="Pass the parameters of the mixtures as the condition.",
        )
    tensors, choice = (parts, None) if len(parts) % 2 else (parts[:-1], parts[-1])
    names = ("w", "mu", "U") if len(tensors) == 3 else ("packed",)
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise KindError(
                name,
                got=f"is {tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__}",
                expected="a tensor of real numbers was expected",
                fix="Pass c in the order [w, mu, U, i].",
            )
    w, means, factors = tensors if len(tensors) == 3 else _unpacked(tensors[0], dimensions)
    _check_axes(w)
    check_shape(
        "mu",
        means,
        (*w.shape, dimensions),
        fix="Pass the axes of w [b, K], then the dimensions of x.",
    )
    if factors.shape != means.shape:  # they are not diagonal
        check_shape(
            "U",
            factors,
            (*w.shape, packed_size(dimensions)),
            fix=f"Pass D log-diagonals, then the strict upper triangle; or {dimensions} alone.",
        )
    return w, means, factors, choice


def _unpacked(packed: Tensor, dimensions: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, means and factors of a packed condition."""
    single = Layout.of(1, dimensions).outputs
    if packed.dim() != 2 or packed.shape[1] % single or not packed.shape[1]:
        raise ShapeError(
            "packed",
            got=f"has shape {list(packed.shape)}",
            expected=f"[b, {single}·K] was expected for {dimensions} dimensions",
            fix="Make it with GaussianMixtureBlock.pack(logits, means, factors).",
        )
    logits, means, factors = Layout.of(packed.shape[1] // single, dimensions).split(packed)
    return torch.softmax(logits, -1), means, factors


def _one_input(x: Sequence[Tensor], means: Tensor, *, alone: bool) -> Tensor:
    """Return the input of a list of one, which must fit the means [b, K, D]."""
    if isinstance(x, Tensor) or len(x) != 1:
        raise ArgumentError(
            "x",
            got="is a tensor" if isinstance(x, Tensor) else f"has {len(x)} inputs",
            expected="a list of one tensor was expected",
            fix="Pass [x], as to any FrEIA block.",
        )
    rows, _, dimensions = means.shape
    shapes = [(rows, dimensions)] if alone else [(rows, dimensions), tuple(means.shape)]
    if tuple(x[0].shape) not in shapes:
        raise ShapeError(
            "x",
            got=f"has shape {list(x[0].shape)}",
            expected=f"{' or '.join(str(list(shape)) for shape in shapes)} was expected",
            fix="Pass one row of x for each row of c; one x a component only without i.",
        )
    return x[0]


def _check_weights(w: Tensor) -> None:
    """Refuse tensors that are not weights [b, K], such as logits."""
    _check_axes(w)
    total, slack = w.detach().sum(-1), max(1e-3, 4 * torch.finfo(w.dtype).eps)
    if anywhere(~((total - 1).abs() <= slack)) or anywhere(~(w.detach() >= 0)):
        raise NotFiniteError(
            "w",
            got=f"has entries from {float(w.min()):.4g} and sums from {float(total.min()):.4g} to "
            f"{float(total.max()):.4g}",
            expected="weights that are not negative and sum to one were expected",
            fix="Pass logits through normalize_weights first, and look for NaN.",
        )


def _check_axes(w: Tensor) -> None:
    if w.dim() != 2 or not w.shape[1]:
        raise ShapeError(
            "w",
            got=f"has shape {list(w.shape)}",
            expected="[b, K] with K ≥ 1 was expected",
            fix="Pass one row of weights for each row of x.",
        )


def _indices(w: Tensor, choice: Any) -> Tensor:
    """Return the component of each row [b], as given or as drawn with a seed."""
    if not isinstance(choice, Tensor):
        return GaussianMixtureBlock.pick_mixture_component(w, seed=choice).long()
    rows, n_components = w.shape
    whole = not (choice.is_floating_point() or choice.is_complex() or choice.dtype is torch.bool)
    if not whole or choice.shape != (rows,):
        raise ShapeError(
            "i",
            got=f"has shape {list(choice.shape)} and dtype {choice.dtype}",
            expected=f"whole numbers [{rows}] were expected",
            fix="Pass a component's index for each row, an int as a seed, or None for all.",
        )
    if rows and not 0 <= int(choice.min()) <= int(choice.max()) < n_components:
        raise ArgumentError(
            "i",
            got=f"has indices from {int(choice.min())} to {int(choice.max())}",
            expected=f"there are components 0 to {n_components - 1}",
            fix="Count the components from zero.",
        )
    return choice.to(w.device, torch.int64)


def _joint(w: Tensor, z: Tensor, log_jacobian: Tensor) -> Tensor:
    """Return log wₖ + log pₖ in double precision. Shapes: [b, K], [b, K, D], [b, K] → [b, K]."""
    _check_weights(w)
    if z.shape[:-1] != w.shape or log_jacobian.shape != w.shape:
        raise ShapeError(
            "z and log_jacobian",
            got=f"have shapes {list(z.shape)} and {list(log_jacobian.shape)}",
            expected=f"{[*w.shape, 'D']} and {list(w.shape)} go with w".replace("'", ""),
            fix="Take them from the block with None in place of indices: all components.",
        )
    # A code whose square overflows is at no density, and its gradient would overflow too.
    codes = widen(torch.where(z.abs() >= longest(z), torch.inf, z))
    origin = codes.new_zeros(z.shape[-1])
    wide, largest = widen(w), torch.finfo(w.dtype).max
    positive = torch.where(wide > 0, wide, 1.0)
    if positive.requires_grad:
        # 1/w of a weight near underflow overflows w's dtype, and its softmax would make it NaN.
        positive.register_hook(lambda gradient: gradient.clamp(-largest, largest))
    log_weights = torch.where(wide > 0, positive.log(), -torch.inf)
    # N(z; 0, I) is N(0; z, I).
    return log_weights + component_log_prob(origin, codes, origin) + widen(log_jacobian)
