"""Laws of every head in the registry, and what each covariance means."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from condens.errors import ArgumentError
from condens.functional import log_prob, partial_log_prob
from condens.nn import HEADS, DiagonalHead, FullHead, IsotropicHead, TiedHead, head_from_dict
from condens.nn.initialise import Start, spread

torch.manual_seed(0)


def make(covariance, features=6, dimensions=3, n_components=4, floor=0.05, **options):
    head = HEADS[covariance](features, dimensions, n_components, floor=floor, **options).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return head


def data(rows=20, features=6, dimensions=3):
    return (
        torch.randn(rows, features, dtype=torch.float64),
        torch.randn(rows, dimensions, dtype=torch.float64),
    )


@pytest.mark.parametrize("covariance", HEADS)
class TestEveryHead:
    def test_both_doors_give_the_same_loss_and_gradients(self, covariance):
        head, (features, target) = make(covariance), data()
        features.requires_grad_()
        weights = torch.rand(20, dtype=torch.float64)
        tensors = [features, *head.parameters()]
        for given, reduce in ((None, torch.mean), (weights, lambda t: (t * weights).sum())):
            fast = head.loss(features, target, given)
            plain = reduce(-head(features).log_prob(target))
            assert_close(fast, plain, rtol=1e-10, atol=1e-10)
            assert_close(
                torch.autograd.grad(fast, tensors),
                torch.autograd.grad(plain, tensors),
                rtol=1e-8,
                atol=1e-10,
            )

    def test_missing_entries_count_with_the_marginal(self, covariance):
        head, (features, target) = make(covariance), data()
        target[3, 1] = target[5, :2] = target[7] = torch.nan
        weights = torch.rand(20, dtype=torch.float64)
        mixture = head(features)
        each = torch.stack(
            [
                mixture[row].marginal(dims).log_prob(target[row, dims]) if dims else torch.zeros(())
                for row in range(20)
                for dims in [(~target[row].isnan()).nonzero().flatten().tolist()]
            ]
        )
        assert_close(head.loss(features, target, weights), -(each * weights).sum())
        assert_close(head.loss(features, target), -each.mean())

    @pytest.mark.parametrize("shift", [-30.0, 30.0])
    def test_no_scale_is_below_the_floor(self, covariance, shift):
        """The density is at most that of three standard deviations of the floor."""
        head, (features, _) = make(covariance), data()
        with torch.no_grad():
            head.linear.bias[4 * (1 + 3) :] += shift
        mixture = head(features)
        for k in range(4):
            highest = mixture.component_log_prob(mixture.means[:, k])[:, k]
            assert (highest <= -3 * math.log(0.05 * math.sqrt(2 * math.pi)) + 1e-9).all()

    @pytest.mark.parametrize("shift", [-1000.0, -30.0, 0.0, 30.0, 1000.0])
    def test_scales_are_bounded_on_both_sides(self, covariance, shift):
        """σ = floor + 1/(1/σ₀ + 1/ceiling), from the outputs, without any function of ours."""
        head, (features, _) = make(covariance, dimensions=1, ceiling=7.0), data()
        start = 4 * (1 + 1)
        with torch.no_grad():
            head.linear.bias[start:] += shift
            u = head.linear(features)[:, start:].numpy()
        if covariance == "low_rank":
            outputs = u.reshape(len(u), 4, -1)
            u, found = -outputs[..., 0], head(features).scales[..., 0]
        else:
            found = head(features).covariance_matrices[..., 0, 0].sqrt()
        with np.errstate(over="ignore"):
            expected = 0.05 + 1 / (np.exp(u) + 1 / 7.0)
        np.testing.assert_allclose(found.detach().numpy(), expected + 0 * found.numpy(force=True))
        assert (found <= 7.05 + 1e-9).all()

    def test_a_start_survives_the_bounds(self, covariance):
        """A head begins at the scales it is asked to begin at, near either bound too."""
        head = make(covariance, dimensions=1, n_components=4, floor=1e-3, ceiling=10.0)
        torch.nn.init.zeros_(head.linear.weight)
        scales = torch.tensor([2e-3, 0.5, 3.0, 9.0], dtype=torch.float64)
        start = Start(torch.zeros(4, 1, dtype=torch.float64), scales.square()[:, None, None])
        head.start_from(start)
        mixture = head(torch.zeros(6, dtype=torch.float64))
        found = (
            mixture.scales[:, 0]
            if covariance == "low_rank"
            else mixture.covariance_matrices[:, 0, 0].sqrt()
        )
        expected = scales.log().mean().exp().expand(4) if covariance == "tied" else scales
        assert_close(found, expected, rtol=1e-9, atol=0)

    def test_the_density_integrates_to_one(self, covariance):
        head = make(covariance, dimensions=1)
        features, _ = data(3)
        grid = torch.linspace(-60, 60, 40_001, dtype=torch.float64)
        density = head(features[:, None]).log_prob(grid[:, None].expand(3, -1, 1)).exp()
        assert_close(torch.trapezoid(density, grid), torch.ones(3, dtype=torch.float64))

    def test_starts_where_the_targets_are(self, covariance):
        generator = torch.Generator().manual_seed(0)
        centres = torch.tensor([[-3.0, 0.0], [3.0, 1.0], [0.0, 4.0]], dtype=torch.float64)
        noise = torch.randn(3, 400, 2, dtype=torch.float64, generator=generator)
        target = (centres[:, None] + 0.3 * noise).flatten(0, 1)
        head = make(covariance, dimensions=2, n_components=3, floor=1e-3)
        torch.nn.init.zeros_(head.linear.weight)
        head.start_from(spread(target, 3, floor=1e-3, generator=generator))
        mixture = head(torch.zeros(1, 6, dtype=torch.float64))
        found = mixture.means[0][mixture.means[0, :, 0].argsort()]
        assert_close(found, centres[centres[:, 0].argsort()], atol=0.1, rtol=0)
        assert_close(mixture.weights, torch.full((1, 3), 1 / 3, dtype=torch.float64))
        scales = mixture.covariance_matrices.diagonal(dim1=-2, dim2=-1).sqrt()
        assert ((scales > 0.2) & (scales < 0.6)).all()

    def test_batch_shapes_are_kept(self, covariance):
        head = make(covariance)
        assert head(torch.zeros(2, 5, 6, dtype=torch.float64)).batch_shape == (2, 5)


def test_covariances_are_what_they_say():
    features, _ = data(5)
    full, diagonal, isotropic, tied = (
        make(covariance)(features) for covariance in ("full", "diagonal", "isotropic", "tied")
    )
    off = ~torch.eye(3, dtype=torch.bool)
    assert (full.covariance_matrices[..., off].abs() > 1e-6).any()
    assert (diagonal.covariance_matrices[..., off] == 0).all()
    spread_out = isotropic.covariance_matrices.diagonal(dim1=-2, dim2=-1)
    assert_close(spread_out, spread_out[..., :1].expand_as(spread_out))
    shared = tied.covariance_matrices
    assert_close(shared, shared[:, :1].expand_as(shared))
    assert (shared[:, 0, 0, 1] != 0).all()


@pytest.mark.parametrize(
    ("head", "scales"), [(FullHead, 150), (DiagonalHead, 50), (IsotropicHead, 10), (TiedHead, 15)]
)
def test_number_of_outputs(head, scales):
    assert head(4, 5, 10).linear.out_features == 10 + 50 + scales


def test_partial_density_is_what_layer_1_says():
    head, (features, target) = make("full"), data()
    target[::2, 1] = torch.nan
    parameters = head.parameters_of(features)
    assert_close(head.loss(features, target), -partial_log_prob(target, *parameters).mean())
    whole = target[1::2]
    assert_close(
        head.loss(features[1::2], whole), -log_prob(whole, *(p[1::2] for p in parameters)).mean()
    )


@pytest.mark.parametrize("covariance", HEADS)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"features": 0},
            "features is 0, but at least 1 was expected. "
            "Pass the features that the backbone gives.",
        ),
        (
            {"n_components": 0},
            "n_components is 0, but at least 1 was expected. "
            "Pass the number of components, such as 10.",
        ),
        (
            {"dimensions": 0},
            "dimensions is 0, but at least 1 was expected. Pass the number of targets.",
        ),
        (
            {"floor": -1e-3},
            "floor is -0.001, but a number between 1e-30 and 1e30 was expected, "
            "or 0 for none. Choose it in units of the standardised target.",
        ),
        (
            {"floor": math.nan},
            "floor is nan, but a number between 1e-30 and 1e30 was expected, "
            "or 0 for none. Choose it in units of the standardised target.",
        ),
        (
            {"ceiling": 0.0},
            "ceiling is 0.0, but a number between 1e-30 and 1e30 was expected, "
            "or inf for none. Choose it in units of the standardised target.",
        ),
    ],
)
def test_impossible_options_are_named(covariance, options, text):
    with pytest.raises(ArgumentError) as raised:
        HEADS[covariance](**{"features": 4, "dimensions": 2, **options})
    assert str(raised.value) == text


@pytest.mark.parametrize("ceiling", [None, 3.0])
@pytest.mark.parametrize("covariance", HEADS)
def test_to_dict_makes_another_like_it(covariance, ceiling):
    options = {"rank": 3} if covariance == "low_rank" else {}
    options |= {"features": 4, "dimensions": 2, "n_components": 7, "floor": 0.25}
    options |= {"ceiling": ceiling}
    head = HEADS[covariance](**options)
    assert head.to_dict() == {"covariance": covariance} | options
    again = head_from_dict(head.to_dict())
    again.load_state_dict(head.state_dict())
    features = torch.randn(5, 4)
    assert torch.equal(again(features).covariance_matrix, head(features).covariance_matrix)
