"""Conditions far outside the training rows: finite densities, no narrower than at their edge."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from condens.errors import ArgumentError, NotFiniteError
from condens.functional.algebra import Parameters
from condens.nn import HEADS, Ensemble, FullHead, MixtureNetwork, Standardiser
from condens.nn.extrapolation import extrapolate
from condens.nn.scaling import ConditionScaling
from condens.training import Settings, train
from condens.transforms import Positive

DOUBLE = torch.float64
LARGEST = torch.finfo(DOUBLE).max


def fitted(*columns):
    """Return a scaling, and its columns' data as numbers [n, C]."""
    values = torch.tensor(columns, dtype=DOUBLE).T.contiguous()
    return ConditionScaling(values.shape[1]).fit(values), values


class TestInput:
    @pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 1e9, 1e300])
    @pytest.mark.parametrize("offset", [0.0, -17.3, 1e6])
    def test_the_identity_inside_bit_for_bit(self, scale, offset):
        generator = torch.Generator().manual_seed(0)
        values = scale * (offset + torch.randn(200, 3, dtype=DOUBLE, generator=generator))
        scaling, plain = ConditionScaling(3).fit(values), Standardiser(3).fit(values)
        low, high = values.amin(0), values.amax(0)
        half = (high - low) / 2
        inside = (low - half) + torch.rand(5000, 3, dtype=DOUBLE, generator=generator) * 4 * half
        inside = inside.clamp(low - half, high + half)
        rows = torch.cat([values, inside, (low - half)[None], (high + half)[None]])
        assert torch.equal(scaling(rows), plain(rows))
        assert torch.equal(scaling(rows, torch.float32), plain(rows).float())
        assert not scaling.outside(rows).any()
        for dtype in (torch.float32, DOUBLE):
            assert (scaling.departure(scaling(rows, dtype)) == 0).all()

    def test_beyond_it_by_the_formula(self):
        scaling, values = fitted([-3.0, 1.0, 5.0], [2.0, 2.5, 2.0])
        for column in range(2):
            low, high = values[:, column].min().item(), values[:, column].max().item()
            location, scale = scaling.location[column].item(), scaling.scale[column].item()
            width = Fraction(high) - Fraction(low)
            for side, end in ((1, Fraction(high) + width / 2), (-1, Fraction(low) - width / 2)):
                for steps in (1e-9, 0.1, 1.0, 37.0, 1e12, 1e250):
                    row = values[:1].clone()
                    row[0, column] = float(end + side * Fraction(steps))
                    standard = (Fraction(row[0, column].item()) - Fraction(location)) / Fraction(
                        scale
                    )
                    edge = (end - Fraction(location)) / Fraction(scale)
                    reach = width / Fraction(scale) / 4
                    t = abs(standard - edge) / reach
                    expected = float(edge + side * reach * t / (1 + t))
                    assert scaling(row)[0, column].item() == pytest.approx(expected, rel=1e-13)
                    assert scaling.outside(row)[0].tolist() == [column == 0, column == 1]

    def test_monotone_with_a_continuous_slope_and_bounded(self):
        scaling, _ = fitted([-1.0, 0.0, 2.0])
        size = torch.cat([torch.logspace(-3, 308, 20_000, dtype=DOUBLE), torch.tensor([LARGEST])])
        line = torch.cat([-size.flip(0), size])[:, None].requires_grad_()
        read = scaling(line)
        assert read.isfinite().all()
        assert (read.diff(dim=0) >= 0).all()
        (slope,) = torch.autograd.grad(read.sum(), line)
        unit = 1 / scaling.scale
        assert slope.isfinite().all()
        assert ((slope >= 0) & (slope <= unit)).all()
        for end in (-2.5, 3.5):
            near = torch.tensor([[end - 1e-7], [end + 1e-7]], requires_grad=True, dtype=DOUBLE)
            (slope,) = torch.autograd.grad(scaling(near).sum(), near)
            assert_close(slope, unit.expand(2, 1), rtol=1e-6, atol=0)
        # A quarter of the width of 3, beyond 2.5 and 3.5.
        limits = torch.tensor([[-2.5 - 0.75], [3.5 + 0.75]], dtype=DOUBLE)
        assert_close(read[[0, -1]], Standardiser.forward(scaling, limits), rtol=1e-14, atol=0)

    @pytest.mark.parametrize("constant", [0.0, 0.1, -1e9])
    def test_a_constant_column_has_a_range_of_one_unit(self, constant):
        scaling, _ = fitted([constant] * 3)
        near = torch.tensor([[constant - 0.5], [constant + 0.5]], dtype=DOUBLE)
        assert torch.equal(scaling(near), Standardiser.forward(scaling, near))
        ends = scaling(torch.tensor([[-LARGEST], [LARGEST]], dtype=DOUBLE)).flatten()
        assert_close(ends, torch.tensor([-0.75, 0.75], dtype=DOUBLE))

    def test_codes_are_read_as_they_are(self):
        values = torch.tensor([[0.0, 1.0, 3.0], [2.0, 4.0, 1.0]], dtype=DOUBLE)
        scaling = ConditionScaling(3, fixed=2).fit(values)
        codes = torch.tensor([[1.0, 77.0, 1e7], [1e300, 0.0, 5e6]], dtype=DOUBLE)
        for dtype in (torch.float32, DOUBLE):
            assert torch.equal(scaling(codes, dtype)[:, 1:], codes[:, 1:].to(dtype))
            assert torch.equal(
                scaling.nearest(scaling(codes, dtype))[:, 1:], codes[:, 1:].to(dtype)
            )
        assert scaling.outside(codes).tolist() == [[False] * 3, [True, False, False]]
        assert torch.equal(scaling.lower[1:], torch.full((2,), LARGEST, dtype=DOUBLE))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, DOUBLE])
    def test_without_a_range_as_it_is_while_it_can_be_computed_with(self, dtype):
        scaling = ConditionScaling(2)
        rows = torch.tensor([[0.0, -100.0], [1e-300, 200.0]], dtype=DOUBLE)
        assert torch.equal(scaling(rows, dtype), rows.to(dtype))
        far = torch.tensor([[1e300, -LARGEST], [1e20, 7e8]], dtype=DOUBLE)
        assert scaling(far, dtype).isfinite().all()

    def test_the_range_grows_and_never_shrinks(self):
        scaling, _ = fitted([-1.0, 1.0], [0.0, 5.0])
        before = scaling.location.clone(), scaling.scale.clone()
        scaling.extend(torch.tensor([[0.0, 9.0], [-0.5, 8.0]]))
        assert (scaling.lower.tolist(), scaling.upper.tolist()) == ([-1.0, 0.0], [1.0, 9.0])
        assert torch.equal(scaling.location, before[0])
        assert torch.equal(scaling.scale, before[1])
        scaling.fit(torch.tensor([[0.0, 1.0], [0.5, 2.0]]))
        assert (scaling.lower.tolist(), scaling.upper.tolist()) == ([0.0, 1.0], [0.5, 2.0])

    @pytest.mark.parametrize("kind", [Standardiser, ConditionScaling])
    @pytest.mark.parametrize("largest", [2.5e307, 1.7e308, LARGEST])
    def test_the_largest_numbers(self, kind, largest):
        """Sums and differences of these are infinite; the answers are not."""
        parts = [-1.0, -0.25, 0.0, 0.5, 1.0]
        values = torch.tensor([[part * largest] for part in parts] * 50, dtype=DOUBLE)
        scaling = kind(1).fit(values)
        deviation = math.sqrt(np.var(parts))
        assert scaling.location.item() == pytest.approx(np.mean(parts) * largest, rel=1e-14)
        assert scaling.scale.item() / largest == pytest.approx(deviation, rel=1e-14)
        expected = (torch.tensor(parts, dtype=DOUBLE) - np.mean(parts)) / deviation
        assert_close(scaling(values[:5])[:, 0], expected, rtol=1e-13, atol=1e-14)


CASES = [*HEADS, "ensemble", "low rank ensemble", "table"]


def made(case, dtype=DOUBLE, gain=1.0, dimensions=2, **options):
    """Return a network whose scales, weights and means vary much, on rows of its own."""
    generator = torch.Generator().manual_seed(0)
    condition = torch.randn(300, 3, generator=generator, dtype=DOUBLE) * torch.tensor([1, 50, 0.01])
    target = 3 + 20 * torch.randn(300, dimensions, generator=generator, dtype=DOUBLE).exp()
    options = {"n_components": 3, "width": 16} | options
    if case == "table":
        condition[:, 2] = torch.randint(0, 4, (300,), generator=generator)
        options["categories"] = [4]

    def one(seed, covariance):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return MixtureNetwork.of(3, dimensions, covariance=covariance, **options)

    if case.endswith("ensemble"):
        kinds = ["low_rank"] * 3 if "rank" in case else ["full", "diagonal", "tied"]
        network = Ensemble([one(seed, kind) for seed, kind in enumerate(kinds)])
    else:
        network = one(0, case if case in HEADS else "full")
    network.prepare(condition, target)
    with torch.no_grad():
        for member in getattr(network, "members", [network]):
            # Less in the means, so that the width of a density is that of its components.
            n_components = member.head.n_components
            member.head.linear.weight.mul_(10)
            member.head.linear.weight[n_components : 3 * n_components].mul_(0.1)
            for parameter in member.parameters():
                parameter.mul_(gain)
    return network.to(dtype).eval(), condition, target


def far_rows(condition, codes=0):
    """Return rows of which each leaves the training range by far, and the nearest inside it."""
    low, high = condition.amin(0), condition.amax(0)
    generator = torch.Generator().manual_seed(1)
    rows = condition[torch.randint(len(condition), (60,), generator=generator)].clone()
    factor = 10 ** (6 * torch.rand(60, generator=generator, dtype=DOUBLE)) * 1.8
    column = torch.randint(3 - codes, (60,), generator=generator)
    each, side = torch.arange(60), torch.rand(60, generator=generator) < 0.5
    ends = torch.where(side, high[column], low[column])
    rows[each, column] = ends + torch.where(side, 1.0, -1.0) * factor * (high - low)[column]
    return rows, torch.maximum(torch.minimum(rows, high), low)


def parameters(network, condition):
    mixture = network(condition)
    return (mixture if network.transforms is None else mixture.base).parameters


class TestDensity:
    @pytest.mark.parametrize("case", CASES)
    def test_inside_is_what_the_head_says_bit_for_bit(self, case):
        network, condition, _ = made(case)
        half = (condition.amax(0) - condition.amin(0)) / 2
        rows = condition.clone()
        if case != "table":
            rows[:2] = torch.stack([condition.amin(0) - half, condition.amax(0) + half])
        far, _ = far_rows(condition, codes=int(case == "table"))
        read = Standardiser.forward(network.condition_scaling, rows)
        expected = network.free_parameters(torch.cat([read, read[: len(far)]]))
        found = network.parameters_of(network.standardise_condition(torch.cat([rows, far])))
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours[: len(rows)], theirs[: len(rows)])

    @pytest.mark.parametrize("case", CASES)
    def test_far_out_it_is_the_edges_density_moved_and_stretched(self, case):
        """p(y) = p_edge(m_edge + (y − m)/γ) / Πγ, each part by numpy from the head's."""
        network, condition, _ = made(case)
        rows, edge = far_rows(condition, codes=int(case == "table"))
        known = network(edge)
        free = network.free_parameters(network.standardise_condition(rows))
        ours = network.target_scaling.inverse(network.form.mixture(free))
        stretch = np.sqrt(_variance(ours) / _variance(known)).clip(1, 10)
        assert (stretch > 1.01).any(), "a stretch of one would hide its direction"
        # Averages of three seldom are narrower.
        assert (stretch == 1).any() or "ensemble" in case, (
            "a free density that is narrower is what this is about"
        )
        target = known.sample(generator=torch.Generator().manual_seed(3))
        moved = ours.mean + torch.as_tensor(stretch) * (target - known.mean)
        expected = known.log_prob(target) - torch.as_tensor(np.log(stretch)).sum(-1)
        assert_close(network(rows).log_prob(moved), expected, rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("dimensions", [2, 6])
    def test_on_the_way_no_component_is_wider_than_at_both_ends(self, case, dimensions):
        """Between packed factors, of which one is narrow and correlated, there are any widths."""
        network, _, _ = made(case, dimensions=dimensions)
        generator = torch.Generator().manual_seed(2)
        condition = 3 * torch.randn(40, 3, generator=generator, dtype=DOUBLE)
        condition[:, 2] = 1.0 if case == "table" else condition[:, 2]
        free = network.free_parameters(condition)
        edge = network.free_parameters(condition.flip(0))
        scale = torch.logspace(-3, 0, dimensions, dtype=DOUBLE)
        far = extrapolate(free.scaled(scale), edge, torch.ones(40))
        widest = torch.maximum(free.scaled(scale).deviations, far.deviations)
        for part in (1e-9, 0.01, 0.3, 0.7, 0.99):
            between = extrapolate(free.scaled(scale), edge, torch.full((40,), part))
            assert (between.deviations <= (1 + 1e-9) * widest).all()

    @pytest.mark.parametrize("case", CASES)
    def test_a_graph_leaves_those_inside_bit_for_bit(self, case):
        network, condition, _ = made(case, dimensions=6)
        free = network.free_parameters(condition)
        within = torch.zeros(len(condition), dtype=DOUBLE)
        found = extrapolate(free, network.free_parameters(condition.flip(0)), within)
        for ours, theirs in zip(found, free, strict=True):
            assert torch.equal(ours, theirs)

    def test_a_narrow_component_meets_a_correlated_one(self):
        """Halfway the packed factors have a diagonal of e⁻⁴, and a deviation of 27."""
        shapes = (torch.zeros(1, 1, dtype=DOUBLE), torch.zeros(1, 1, 2, dtype=DOUBLE))
        free = Parameters(*shapes, torch.tensor([[[0.0, 8.0, -3000.0]]], dtype=DOUBLE))
        edge = Parameters(*shapes, torch.zeros(1, 1, 3, dtype=DOUBLE))
        assert free.deviations.max() < 2
        for part in (0.1, 0.5, 0.9):
            found = extrapolate(free, edge, torch.tensor([part], dtype=DOUBLE))
            assert found.deviations.max() < 2

    @pytest.mark.parametrize("case", CASES)
    def test_no_range_of_quantiles_is_narrower_than_at_the_edge(self, case):
        network, condition, _ = made(case)
        rows, edge = far_rows(condition, codes=int(case == "table"))
        far, known = network(rows), network(edge)
        slack = 1 - 1e-9
        assert (far.stddev >= slack * known.stddev).all()
        # The precisions' diagonals: the spread of each dimension given all others.
        given = [
            torch.linalg.inv(m.covariance_matrices).diagonal(dim1=-2, dim2=-1) for m in (known, far)
        ]
        assert (given[0] >= slack * given[1]).all()
        for dim in range(2):
            one, other = far.marginal(dim), known.marginal(dim)
            for coverage in (0.1, 0.5, 0.9, 0.99):
                widths = [torch.sub(*reversed(m.interval(coverage))) for m in (one, other)]
                assert (widths[0] >= slack * widths[1]).all()

    @pytest.mark.parametrize("case", CASES)
    def test_continuous_at_the_end_of_the_identity_and_beyond(self, case):
        network, condition, _ = made(case)
        scaling = network.condition_scaling
        start = condition[:1].expand(400, -1).clone()
        end = 1.5 * scaling.upper[0] - 0.5 * scaling.lower[0]
        start[:, 0] = torch.linspace(end - 0.1, end + 3, 400, dtype=DOUBLE)
        assert (scaling.departure(scaling(start)) == 1).any()
        for tensor in parameters(network, start):
            jumps = tensor.diff(dim=0).abs().flatten(1).amax(1)
            whole = (tensor[-1] - tensor[0]).abs().amax()
            assert (jumps <= 0.05 * whole + 1e-12).all()

    @pytest.mark.parametrize("gaps", [False, True])
    @pytest.mark.parametrize("case", CASES)
    def test_both_doors_agree(self, case, gaps):
        network, condition, target = made(case)
        rows, _ = far_rows(condition, codes=int(case == "table"))
        both = torch.cat([rows, condition[:40]])
        y = network(both).sample(generator=torch.Generator().manual_seed(5))
        if gaps:
            y[::3, 0] = y[1::7, 1] = math.nan
        each = -network(both).observed_log_prob(y)
        assert_close(network.nll(both, y), each, rtol=1e-9, atol=1e-9)
        assert_close(network.loss(both, y), each.mean(), rtol=1e-9, atol=1e-9)
        weights = torch.rand(len(y), dtype=DOUBLE)
        assert_close(network.loss(both, y, weights), (weights * each).sum(), rtol=1e-9, atol=1e-9)
        assert torch.isfinite(network.loss(rows, target[: len(rows)]))

    def test_gradients_are_finite_and_right(self):
        network, condition, _ = made("full", width=4)
        rows, _ = far_rows(condition)
        y = network(rows).sample(generator=torch.Generator().manual_seed(5))
        # Read from 1e150 on, a condition has no slope left.
        at = rows.clone().requires_grad_()
        (slope,) = torch.autograd.grad(network.loss(at, y), at)
        assert slope.isfinite().all()
        near = condition[:1].expand(20, -1).clone()
        ends = 1.5 * network.condition_scaling.upper - 0.5 * network.condition_scaling.lower
        near[:, 0] = ends[0] + torch.linspace(0.02, 5.0, 20, dtype=DOUBLE)
        near.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda x: network(x).log_prob(y[:20]), near, rtol=1e-4, atol=1e-6
        )

    def test_one_row_without_a_batch(self):
        network, condition, _ = made("full")
        for row in (condition[0], far_rows(condition)[0][0]):
            batch = network(row[None])
            for ours, theirs in zip(network(row).parameters, batch.parameters, strict=True):
                assert_close(ours, theirs[0], rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("case", ["full", "low_rank", "ensemble"])
    def test_under_transforms_as_outside_them(self, case):
        """A graph cannot look at values: there every row is evaluated twice."""
        network, condition, _ = made(case)
        rows = torch.cat([far_rows(condition)[0][:5], condition[:5]])
        read = network.standardise_condition(rows)
        expected = network.parameters_of(read)
        found = torch.func.vmap(lambda row: tuple(network.parameters_of(row)))(read)
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def _variance(mixture):
    """Return Σπ(v + (μ − m)²), v the variance of a dimension given those after it [b, D]."""
    weights, means = mixture.weights.numpy(force=True)[..., None], mixture.means.numpy(force=True)
    if hasattr(mixture, "loadings"):
        within = mixture.scales**2 + mixture.loadings.square().sum(-1)
        within = within.numpy(force=True)
    else:
        covariance = mixture.covariance_matrices.numpy(force=True)
        precision = np.linalg.inv(covariance)
        within = np.stack([1 / precision[..., 0, 0], covariance[..., 1, 1]], -1)
    centre = (weights * means).sum(-2, keepdims=True)
    return (weights * (within + (means - centre) ** 2)).sum(-2)


@pytest.mark.parametrize("gain", [1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_every_finite_condition_has_finite_parameters(case, prepared, dtype, gain):
    """With wild weights too, and before the first training."""
    network, *_ = made(case, dtype, gain)
    if not prepared:
        for member in [network, *getattr(network, "members", [])]:
            member.condition_scaling = ConditionScaling(3, fixed=int(case == "table"))
    sizes = [0.0, 5e-324, 1e-300, 1.0, 1e3, 1e9, 1e38, 1e39, 1e300, LARGEST]
    numbers = torch.tensor([*sizes, *(-size for size in sizes)], dtype=DOUBLE)
    rows = torch.cartesian_prod(numbers, numbers)
    last = torch.zeros(len(rows), 1, dtype=DOUBLE) if case == "table" else rows[:, :1].flip(0)
    mixture = network(torch.cat([rows, last], 1))
    for tensor in mixture.parameters:
        assert tensor.isfinite().all()
    if gain == 1.0:
        assert mixture.stddev.isfinite().all()
        assert mixture.log_prob(mixture.mean).isfinite().all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_condition_that_is_no_number_is_refused_at_both_doors(value):
    network, condition, target = made("full")
    condition = condition.clone()
    condition[7, 1] = value
    for door in (network, lambda c: network.loss(c, target), lambda c: network.nll(c, target)):
        with pytest.raises(NotFiniteError, match="condition is NaN or infinite in row 7, but"):
            door(condition)
    image = MixtureNetwork(torch.nn.Flatten(), FullHead(4, 1, 2))
    with pytest.raises(NotFiniteError, match="condition is NaN or infinite in row 0, but"):
        image(torch.full((1, 2, 2), value))


class TestTraining:
    def test_prepare_takes_the_range_for_every_member(self):
        network, condition, target = made("ensemble")
        for scaling in [network.condition_scaling, *(m.condition_scaling for m in network.members)]:
            assert torch.equal(scaling.lower, condition.amin(0))
            assert torch.equal(scaling.upper, condition.amax(0))
        network.prepare(condition[:50], target[:50], from_data=False)
        for scaling in [network.condition_scaling, *(m.condition_scaling for m in network.members)]:
            assert torch.equal(scaling.upper, condition[:50].amax(0))

    @pytest.mark.filterwarnings("ignore:.*explained by no component")
    @pytest.mark.parametrize("case", ["full", "ensemble"])
    def test_going_on_widens_the_range_and_keeps_the_scales(self, case):
        network, condition, target = made(case, torch.float32)
        before = copy.deepcopy(network.condition_scaling)
        settings = Settings(epochs=1, start="keep", validation_fraction=0.0)
        train(network, (condition[:100] * 3, target[:100]), settings, progress=False)
        train(network, (condition[:50], target[:50]), settings, progress=False)
        after = network.condition_scaling
        assert torch.equal(after.scale, before.scale)
        assert torch.equal(after.location, before.location)
        assert torch.equal(after.lower, torch.minimum(before.lower, 3 * condition[:100].amin(0)))
        assert torch.equal(after.upper, torch.maximum(before.upper, 3 * condition[:100].amax(0)))
        for member in getattr(network, "members", []):
            assert torch.equal(member.condition_scaling.upper, after.upper)

    def test_a_column_of_the_largest_numbers(self):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(400, 1, generator=generator, dtype=DOUBLE)
        y = x + 0.1 * torch.randn(400, 1, generator=generator, dtype=DOUBLE)
        networks = []
        for unit in (1.0, 2.0**1020):
            torch.manual_seed(0)
            network = MixtureNetwork.of(1, 1, n_components=2, width=16)
            train(network, (x * unit, y), Settings(epochs=3), progress=False)
            networks.append(network(x * unit))
        for ours, theirs in zip(networks[0].parameters, networks[1].parameters, strict=True):
            assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_an_ensemble_of_two_kinds_of_mixtures_is_refused():
    members = [MixtureNetwork.of(1, 2, covariance=s) for s in ("full", "low_rank")]
    with pytest.raises(ArgumentError, match=r"members have covariances \['full', 'low_rank'\]"):
        Ensemble(members)


def test_targets_with_a_transform_stay_in_their_support():
    network, condition, _ = made("full", transforms=[Positive(), Positive()])
    rows, edge = far_rows(condition)
    far, known = network(rows), network(edge)
    assert (far.base.stddev >= (1 - 1e-9) * known.base.stddev).all()
    draws = far.sample((50,), generator=torch.Generator().manual_seed(0))
    assert (draws > 0).all()
    y = known.sample(generator=torch.Generator().manual_seed(1))
    assert_close(network.nll(rows, y), -far.log_prob(y), rtol=1e-9, atol=1e-9)
