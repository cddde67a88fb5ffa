"""The network: two doors that agree, in the original units, and exact standardising."""

import copy
import math

import numpy as np
import pytest
import torch
from helpers.reference import log_density
from torch import nn
from torch.testing import assert_close

from condens.errors import ArgumentError, NotFiniteError, ShapeError
from condens.nn import (
    HEADS,
    MLP,
    Ensemble,
    FullHead,
    MixtureNetwork,
    Standardiser,
    TableMLP,
    scaling,
)
from condens.nn.scaling import ConditionScaling

NAN = math.nan


def stretched(rows=40, conditions=2, targets=3, seed=0):
    """Return data far from standardised: other centres and scales in every column."""
    generator = torch.Generator().manual_seed(seed)

    def normal(columns):
        return torch.randn(rows, columns, dtype=torch.float64, generator=generator)

    scales = torch.tensor([1e-3, 50.0, 7.0], dtype=torch.float64)[:targets]
    centres = torch.tensor([5.0, -3e3, 0.1], dtype=torch.float64)[:targets]
    mixing = torch.tensor([[1, 0.5, 0.2], [0, 1, -0.7], [0, 0, 1]], dtype=torch.float64)
    targets = centres + scales * (normal(targets) @ mixing[:targets, :targets])
    return 100 + 20 * normal(conditions), targets


def made(covariance="full", conditions=2, targets=3, seed=0, **options):
    """Return a prepared double network whose every parameter is random."""
    torch.manual_seed(seed)
    network = MixtureNetwork.of(
        conditions, targets, n_components=4, covariance=covariance, width=8, **options
    ).double()
    network.prepare(*stretched(conditions=conditions, targets=targets))
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return network.eval()


@pytest.mark.parametrize("covariance", HEADS)
class TestBothDoors:
    def test_agree_with_and_without_weights(self, covariance):
        network, (condition, target) = made(covariance), stretched(seed=1)
        weights = torch.rand(len(target), dtype=torch.float64)
        density = network(condition).log_prob(target)
        assert_close(network.loss(condition, target), -density.mean(), rtol=1e-10, atol=0)
        expected = -(weights * density).sum()
        assert_close(network.loss(condition, target, weights), expected, rtol=1e-10, atol=0)

    def test_agree_where_entries_are_missing(self, covariance):
        network, (condition, target) = made(covariance), stretched(seed=1)
        target[0, 0] = target[1, 1:] = target[2, ::2] = target[3] = NAN
        weights = torch.rand(len(target), dtype=torch.float64)
        each = torch.stack(
            [
                network(c).marginal(dims).log_prob(t[dims]) if dims else t.new_zeros(())
                for c, t in zip(condition, target, strict=True)
                for dims in [(~t.isnan()).nonzero().flatten().tolist()]
            ]
        )
        assert_close(network.loss(condition, target), -each.mean(), rtol=1e-9, atol=0)
        expected = -(weights * each).sum()
        assert_close(network.loss(condition, target, weights), expected, rtol=1e-9, atol=0)

    def test_have_the_same_gradients(self, covariance):
        network, (condition, target) = made(covariance), stretched(seed=1)
        doors = (network.loss(condition, target), -network(condition).log_prob(target).mean())
        one, other = (torch.autograd.grad(loss, list(network.parameters())) for loss in doors)
        assert_close(one, other, rtol=1e-7, atol=1e-10)

    def test_are_a_change_of_variables_of_the_heads_density(self, covariance):
        """By scipy, from the head's mixture of z: p(x) = p(z) / Π scale, z = (x − loc) / scale."""
        network, (condition, target) = made(covariance), stretched(seed=1)
        location, scale = (b.numpy() for b in network.target_scaling.buffers())
        assert (abs(np.log(scale)) > 1).all(), "a scale of one would hide its logarithm"
        centre, width = network.condition_scaling.location, network.condition_scaling.scale
        mixtures = network.head(network.backbone((condition - centre) / width))
        z = (target.numpy() - location) / scale
        expected = [
            log_density(z[row], m.weights, m.means, m.covariance_matrices) - np.log(scale).sum()
            for row, m in ((row, mixtures[row]) for row in range(len(z)))
            for m in [_numpy(m)]
        ]
        found = network(condition).log_prob(target).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-9)


class _numpy:  # noqa: N801
    def __init__(self, mixture):
        self.weights = mixture.weights.detach().numpy()
        self.means = mixture.means.detach().numpy()
        self.covariance_matrices = mixture.covariance_matrices.detach().numpy()


class TestStandardiser:
    @pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30, 1e300])
    def test_any_scale_by_numpy(self, scale):
        values = scale * torch.randn(500, 2, dtype=torch.float64)
        scaling = Standardiser(2).fit(values)
        numbers = values.numpy() / scale
        np.testing.assert_allclose(scaling.location.numpy() / scale, numbers.mean(0), rtol=1e-12)
        np.testing.assert_allclose(scaling.scale.numpy() / scale, numbers.std(0), rtol=1e-12)
        assert_close(scaling(values).mean(0), torch.zeros(2, dtype=torch.float64))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("far", [False, True])
    def test_blocks_of_rows_give_the_numbers_of_all_rows_at_once(self, dtype, far, monkeypatch):
        values = (7 + 3 * torch.randn(500, 3)).to(dtype)
        values[::9, 1] = NAN
        before, asked = values.clone(), values.nan_to_num(1e9 if far else 5.0)
        made = []
        for rows in (1000, 7):
            monkeypatch.setattr(scaling, "ROWS_PER_BLOCK", rows)
            one = ConditionScaling(3, fixed=1).fit(values)
            made.append([*one.buffers(), one(asked), one(asked, torch.float32)])
        assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))
        assert torch.equal(values.nan_to_num(0.0), before.nan_to_num(0.0))

    def test_infinities_are_found_in_the_last_rows_too(self):
        values = torch.zeros(40_000, 2)
        values[39_000, 1] = math.inf
        with pytest.raises(NotFiniteError, match="infinite in row 39000, column 1"):
            Standardiser(2).fit(values)

    def test_gradients_go_through_many_rows(self):
        values = torch.randn(40_000, 1, dtype=torch.float64)
        found = Standardiser(1).fit(values)
        values.requires_grad_()
        (slope,) = torch.autograd.grad(found(values).sum(), values)
        assert_close(slope, torch.ones_like(slope) / found.scale)

    def test_small_changes_of_large_numbers_keep_their_digits(self):
        noise = torch.randn(1000, 1, dtype=torch.float64)
        found = Standardiser(1).fit(1e9 + noise)(1e9 + noise)
        expected = (noise - noise.mean()) / noise.std(correction=0)
        # A number near 1e9 has 1e-7 between neighbours.
        assert_close(found, expected, rtol=0, atol=5e-7)

    def test_columns_have_scales_of_their_own(self):
        values = torch.randn(300, 3) * torch.tensor([1e-20, 1.0, 1e20])
        ratio = Standardiser(3).fit(values).scale / torch.tensor([1e-20, 1.0, 1e20])
        assert ((ratio > 0.8) & (ratio < 1.2)).all()

    @pytest.mark.parametrize("constant", [0.0, 0.1, -1e9, 1e-30, 1e30, 123456.789])
    @pytest.mark.parametrize("rows", [1, 2, 1003])
    def test_constant_columns_have_scale_one(self, constant, rows):
        values = torch.full((rows, 1), constant, dtype=torch.float64)
        scaling = Standardiser(1).fit(values)
        assert scaling.scale.item() == 1.0
        assert abs(scaling(values)).max() <= 1e-14 * abs(constant)

    def test_missing_entries_take_no_part(self):
        values = torch.randn(200, 2, dtype=torch.float64)
        gaps = torch.rand(200) < 0.4
        full = Standardiser(1).fit(values[~gaps, 1:])
        values[gaps, 1] = NAN
        scaling = Standardiser(2).fit(values)
        assert_close(scaling.location[1:], full.location)
        assert_close(scaling.scale[1:], full.scale)
        assert torch.equal(scaling(values).isnan(), values.isnan())

    def test_a_column_without_any_entry(self):
        scaling = Standardiser(1).fit(torch.full((5, 1), NAN))
        assert (scaling.location.item(), scaling.scale.item()) == (0.0, 1.0)

    def test_an_outlier_does_not_decide(self):
        values = 3 + 2 * torch.randn(1000, 1, dtype=torch.float64)
        values[17] = 1e12
        scaling = Standardiser(1).fit(values)
        assert abs(scaling.location.item() - 3) < 0.3
        assert abs(scaling.scale.item() - 2) < 0.3

    def test_heavy_tails(self):
        uniform = torch.rand(20_000, 1, dtype=torch.float64)
        scaling = Standardiser(1).fit((math.pi * (uniform - 0.5)).tan())
        # Quartiles of a Cauchy are −1 and 1; their distance tells 1.4826 of a normal.
        assert abs(scaling.location.item()) < 0.1
        assert abs(scaling.scale.item() - 1.4826) < 0.1

    def test_rare_events_keep_their_deviation(self):
        values = torch.zeros(100, 1, dtype=torch.float64)
        values[3] = 10.0
        assert_close(Standardiser(1).fit(values).scale, values.std(0, correction=0))

    def test_infinite_is_refused_by_name(self):
        values = torch.zeros(4, 2)
        values[2, 1] = -math.inf
        with pytest.raises(NotFiniteError) as raised:
            Standardiser(2).fit(values, "target")
        assert str(raised.value) == (
            "target is infinite in row 2, column 1, but finite numbers were expected. "
            "Remove the row, or mark the entry as missing with NaN."
        )

    def test_casts_keep_the_exact_buffers(self):
        network = made()
        scalings = (network.condition_scaling, network.target_scaling)
        before = [b.clone() for s in scalings for b in s.buffers()]
        assert any(not torch.equal(b, b.float().double()) for b in before)
        for cast in (
            lambda n: n.float(),
            lambda n: n.double(),
            lambda n: n.to(torch.float32),
            lambda n: n.to("cpu", torch.bfloat16),
            lambda n: n.half(),
            lambda n: copy.deepcopy(n).float(),
            lambda n: n.double(),
        ):
            moved = cast(network)
            scalings = (moved.condition_scaling, moved.target_scaling)
            now = [b for s in scalings for b in s.buffers()]
            assert all(b.dtype == torch.float64 for b in now)
            assert all(torch.equal(b, a) for a, b in zip(before, now, strict=True))
        assert network.to("meta").target_scaling.scale.device.type == "meta"

    def test_state_goes_round(self):
        network, (condition, target) = made(), stretched(seed=1)
        other = MixtureNetwork.of(2, 3, n_components=4, width=8).double().eval()
        assert not torch.equal(other.target_scaling.scale, network.target_scaling.scale)
        other.load_state_dict(network.state_dict())
        assert torch.equal(other.loss(condition, target), network.loss(condition, target))
        assert torch.equal(other(condition).means, network(condition).means)


class TestPrepare:
    def test_is_reproducible_and_leaves_the_global_generator_alone(self):
        condition, target = stretched(500)
        before, made = torch.get_rng_state(), []
        for seed in (None, None, 0, 1):
            with torch.random.fork_rng():
                torch.manual_seed(5)
                network = MixtureNetwork.of(2, 3, n_components=4, width=8)
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            made.append(network.prepare(condition, target, generator=generator).state_dict())
        assert torch.equal(torch.get_rng_state(), before)
        for other in made[1:3]:
            assert all(torch.equal(made[0][name], other[name]) for name in other)
        assert not torch.equal(made[0]["head.linear.bias"], made[3]["head.linear.bias"])

    def test_starts_better_than_a_single_gaussian_would_on_clusters(self):
        centres = torch.tensor([[-5.0, 100.0], [5.0, 110.0], [5.0, 100.0]])
        target = (centres.unsqueeze(1) + torch.randn(3, 100, 2)).flatten(0, 1).double()
        condition = torch.randn(300, 1, dtype=torch.float64)
        network = MixtureNetwork.of(1, 2, n_components=3, width=8).double()
        network.prepare(condition, target)
        single = 0.5 * torch.logdet(2 * math.pi * math.e * torch.cov(target.T))
        assert network.loss(condition, target) < single - 0.5

    @pytest.mark.parametrize("covariance", HEADS)
    def test_a_shortcut_starts_as_a_linear_model(self, covariance):
        """Means as those of least squares, where there is next to no noise."""
        condition, _ = stretched(400)
        noise = 1e-3 * torch.randn(400, 3, dtype=torch.float64)
        target = condition @ torch.randn(2, 3, dtype=torch.float64) + 5 + 100 * noise
        network = MixtureNetwork.of(
            2, 3, n_components=2, covariance=covariance, width=8, shortcut=True
        ).double()
        network.prepare(condition, target)
        design = torch.cat([condition, torch.ones(400, 1)], 1)
        expected = design @ torch.linalg.lstsq(design, target).solution
        spread = target.std(0)
        assert ((network(condition).mean - expected) / spread).abs().max() < 1e-3
        assert (network.head.linear.weight[:, :8] == 0).all()
        gaussian = 0.5 * torch.logdet(2 * math.pi * math.e * torch.cov((target - expected).T))
        if covariance in ("full", "tied", "diagonal"):
            assert network.loss(condition, target) < gaussian + 0.3

    def test_a_column_far_from_zero_that_hardly_varies_is_no_matter(self):
        """Its part of the means is large, and so is the bias against it."""
        codes = torch.randint(1, 3, (300, 1)).double()
        target = 2 * codes + 0.1 * torch.randn(300, 1, dtype=torch.float64)
        network = MixtureNetwork.of(1, 1, n_components=1, categories=[3], shortcut=True).double()
        with torch.no_grad():
            network.backbone.embeddings[0].copy_(torch.tensor([[3.0, 0, 0], [3.001, 0, 0]]))
        network.prepare(codes, target)
        assert (network(codes).mean - 2 * codes).abs().max() < 0.05

    def test_members_start_from_their_own_rows(self):
        """Rows of nonsense change the start of those members alone that train on them."""
        condition, target = torch.randn(2, 90, 1, dtype=torch.float64)
        target = 3 * condition + 0.1 * target
        target[60:] = -2 * condition[60:]
        parts = [torch.arange(60), torch.arange(30, 90)]
        networks = [
            MixtureNetwork.of(1, 1, n_components=1, width=4, shortcut=True).double() for _ in parts
        ]
        Ensemble(networks).prepare(condition, target, parts=parts)
        one = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        slopes = [(network(one).mean[1] - network(one).mean[0]).item() for network in networks]
        assert slopes[0] == pytest.approx(3, abs=0.1)
        assert slopes[1] < 2

    def test_without_data_only_the_scales(self):
        torch.manual_seed(0)
        network = MixtureNetwork.of(2, 3, n_components=4, width=8)
        before = copy.deepcopy(network.head.state_dict())
        network.prepare(*stretched(), from_data=False)
        assert all(torch.equal(t, before[name]) for name, t in network.head.state_dict().items())
        assert network.target_scaling.location[1].item() < -2e3


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 4, 3)

    def forward(self, image):
        return self.layer(image).amax((-1, -2))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)

    def forward(self, tokens):
        return self.embedding(tokens).mean(1)


class TestBackbones:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_images_are_taken_as_they_come(self, dtype):
        torch.manual_seed(0)
        network = MixtureNetwork(Convolution(), FullHead(4, 2, 3))
        image, target = torch.randn(20, 1, 8, 8, dtype=dtype), torch.randn(20, 2, dtype=dtype)
        network.prepare(image, target)
        assert network.condition_scaling is None
        read = network.standardise_condition(image)
        assert torch.equal(read, image.float())
        mixture = network(image)
        assert mixture.batch_shape == (20,)
        assert mixture.means.dtype == dtype
        loss = network.loss(image, target)
        assert_close(loss.to(dtype), -mixture.log_prob(target).mean(), rtol=1e-5, atol=1e-5)

    def test_sequences_of_whole_numbers_stay_whole(self):
        network = MixtureNetwork(Tokens(), FullHead(4, 1, 2))
        tokens, target = torch.randint(11, (20, 7)), torch.randn(20, 1)
        mixture = network.prepare(tokens, target)(tokens)
        assert mixture.means.dtype == network.dtype
        assert_close(network.loss(tokens, target), -mixture.log_prob(target).mean())

    def test_a_backbone_of_ones_own_with_columns(self):
        backbone = nn.Sequential(nn.Linear(2, 5), nn.Tanh())
        network = MixtureNetwork(backbone, FullHead(5, 3, 2), condition_columns=2).double()
        condition, target = stretched()
        network.prepare(condition, target)
        expected = (condition - condition.mean(0)) / condition.std(0, correction=0)
        assert_close(network.standardise_condition(condition), expected)
        assert_close(network.loss(condition, target), -network(condition).log_prob(target).mean())


def test_names_reach_the_mixture():
    network = made(targets=2, names=["lat", "lon"])
    mixture = network(torch.zeros(4, 2, dtype=torch.float64))
    assert mixture.names == ("lat", "lon")
    assert_close(mixture.marginal(["lon"]).means, mixture.means[..., 1:])


@pytest.mark.parametrize("network_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_answers_have_the_dtype_of_the_condition(network_dtype, dtype):
    network = made().to(network_dtype)
    condition = (100 * torch.ones(5, 2)).to(dtype)
    expected = dtype if dtype.is_floating_point else network_dtype
    mixture = network(condition)
    assert mixture.means.dtype == mixture.factors.dtype == mixture.weights.dtype == expected
    assert network.loss(condition, torch.zeros(5, 3)).dtype == network_dtype


def test_large_offsets_survive_a_float32_network():
    """The mixture leaves the standardised units in double precision."""
    target = 1.7e9 + torch.randn(400, 1, dtype=torch.float64)
    condition = torch.randn(400, 2, dtype=torch.float64)
    network = MixtureNetwork.of(2, 1, n_components=3, width=8).prepare(condition, target)
    expected = -network(condition).log_prob(target).mean()
    assert expected < 2.0
    assert_close(network.loss(condition, target).double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("condition", "target", "error", "text"),
    [
        (
            torch.zeros(4, 2),
            torch.zeros(4),
            ShapeError,
            "target has shape [4], but [rows, 3] was expected. Pass one column for each dimension.",
        ),
        (
            torch.zeros(4, 2),
            torch.zeros(4, 2),
            ShapeError,
            "target has shape [4, 2], but [rows, 3] was expected. "
            "Pass one column for each dimension.",
        ),
        (
            torch.zeros(5, 2),
            torch.zeros(4, 3),
            ShapeError,
            "condition has 5 rows, but target has 4. Pass one condition for each row of target.",
        ),
        (
            torch.zeros(4, 1),
            torch.zeros(4, 3),
            ShapeError,
            "condition has shape [4, 1], but [rows, 2] was expected. "
            "Pass one column for each feature.",
        ),
        (
            torch.zeros(4),
            torch.zeros(4, 3),
            ShapeError,
            "condition has shape [4], but [rows, 2] was expected. "
            "Pass one column for each feature.",
        ),
        (
            torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, NAN]]),
            torch.zeros(3, 3),
            NotFiniteError,
            "condition is NaN or infinite in row 2, but the network reads every entry. Drop such "
            "rows, or fill the entries (and add a column that marks them).",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(condition, target, error, text):
    network = MixtureNetwork.of(2, 3, width=8)
    for door in (network.loss, network.prepare):
        with pytest.raises(error) as raised:
            door(condition, target)
        assert str(raised.value) == text


@pytest.mark.parametrize("shape", [(7, 1), (7, 3), (1,), ()])
def test_a_condition_of_other_columns_is_refused(shape):
    with pytest.raises(ShapeError, match=r"condition has shape .* but \[rows, 2\] was expected"):
        MixtureNetwork.of(2, 3, width=8)(torch.zeros(shape))


def test_unknown_covariances_are_named():
    with pytest.raises(ArgumentError) as raised:
        MixtureNetwork.of(2, 3, covariance="banded")
    text = (
        f"covariance is 'banded', but one of {tuple(HEADS)} was expected. Pass one of these names."
    )
    assert str(raised.value) == text


@pytest.mark.parametrize("covariance", [name for name in HEADS if name != "low_rank"])
def test_a_rank_is_for_low_rank_only(covariance):
    with pytest.raises(ArgumentError) as raised:
        MixtureNetwork.of(2, 3, covariance=covariance, rank=2)
    assert str(raised.value) == (
        f"rank is 2, but the covariance {covariance!r} has no rank. Leave it out, or choose "
        "covariance='low_rank'."
    )


def test_floor_and_rank_reach_the_head():
    network = MixtureNetwork.of(2, 3, covariance="low_rank", rank=2, floor=0.25)
    assert network.head.to_dict()["rank"] == 2
    assert network(torch.zeros(1, 2)).loadings.shape == (1, 10, 3, 2)
    assert (network(torch.zeros(1, 2)).scales > 0.25).all()
    assert MixtureNetwork.of(2, 3, covariance="low_rank").head.rank == 5


def test_options_reach_their_parts():
    network = MixtureNetwork.of(
        2, 3, n_components=4, covariance="tied", width=9, depth=3, dropout=0.2, floor=0.07
    )
    assert isinstance(network.backbone, MLP)
    assert network.head.covariance == "tied"
    assert (network.head.n_components, network.head.floor, network.backbone.features) == (
        4,
        0.07,
        9,
    )
    assert sum(isinstance(m, nn.Dropout) and m.p == 0.2 for m in network.modules()) == 2


class Sized(nn.Module):
    """A backbone that tells how many features it returns, or returns something else."""

    def __init__(self, returned, features=None):
        super().__init__()
        self.returned = returned
        if features is not None:
            self.features = features

    def forward(self, condition):
        return self.returned(condition)


class TestParts:
    """Backbones and heads that do not fit are named, not left to a matrix product."""

    @pytest.mark.parametrize("backbone", [MLP(3, 7), TableMLP(2, [3], 7), Sized(None, 7)])
    def test_widths_are_compared_at_once(self, backbone):
        with pytest.raises(ShapeError) as raised:
            MixtureNetwork(backbone, FullHead(8, 2, 3))
        assert str(raised.value) == (
            "head has 8 features, but backbone.features is 7. Make it with features=7."
        )

    @pytest.mark.parametrize(
        ("backbone", "shape"),
        [
            (nn.Linear(3, 7), [5, 7]),
            (Sized(lambda x: x[:, :1].expand(-1, 9)), [5, 9]),
            (Sized(lambda x: x.sum()), []),
            (Sized(lambda _: torch.zeros(4, 8)), [4, 8]),
            (Sized(lambda _: torch.zeros(8)), [8]),
        ],
    )
    @pytest.mark.parametrize("columns", [3, None])
    def test_widths_are_compared_in_the_first_call(self, backbone, shape, columns):
        network = MixtureNetwork(backbone, FullHead(8, 2, 3), condition_columns=columns)
        for call in (
            lambda: network(torch.zeros(5, 3)),
            lambda: network.loss(torch.zeros(5, 3), torch.zeros(5, 2)),
            lambda: network.nll(torch.zeros(5, 3), torch.zeros(5, 2)),
            lambda: Ensemble([network])(torch.zeros(5, 3)),
        ):
            with pytest.raises(ShapeError) as raised:
                call()
            assert str(raised.value) == (
                f"backbone returns shape {shape} for [5, 3], but [5, 8] was expected, as the head "
                "reads 8 features. Give the head as many features as the backbone returns for "
                "each row."
            )

    @pytest.mark.parametrize(
        ("backbone", "kind"),
        [
            (nn.GRU(3, 8, batch_first=True), "tuple"),
            (nn.LSTM(3, 8), "tuple"),
            (Sized(lambda _: None), "NoneType"),
            (Sized(lambda x: {"features": x}), "dict"),
            (Sized(lambda x: x.numpy()), "ndarray"),
        ],
    )
    def test_what_is_no_tensor(self, backbone, kind):
        network = MixtureNetwork(backbone, FullHead(8, 2, 3), condition_columns=3)
        with pytest.raises(ArgumentError) as raised:
            network(torch.zeros(5, 3))
        assert str(raised.value) == (
            f"backbone returns a {kind}, but features [b, 8] were expected. Wrap it in a module "
            "that returns one tensor, such as the last state of a GRU."
        )

    def test_the_last_state_of_a_gru(self):
        """What the message advises works."""

        class Last(nn.Module):
            def __init__(self):
                super().__init__()
                self.gru = nn.GRU(3, 8, batch_first=True)

            def forward(self, condition):
                return self.gru(condition)[1][-1]

        network = MixtureNetwork(Last(), FullHead(8, 2, 3))
        assert network(torch.zeros(5, 11, 3)).batch_shape == (5,)

    def test_columns_that_the_backbone_does_not_read(self):
        for backbone in (MLP(4, 8), TableMLP(2, [3, 3], 8)):
            with pytest.raises(ShapeError, match=r"condition_columns is 3, but the backbone rea"):
                MixtureNetwork(backbone, FullHead(8, 2, 3), condition_columns=3)

    @pytest.mark.parametrize(
        ("backbone", "head", "text"),
        [
            (MLP, FullHead(8, 2), "backbone is the class MLP, but a torch.nn.Module was expected"),
            (None, FullHead(8, 2), "backbone is None, but a torch.nn.Module was expected"),
            (MLP(3, 8), FullHead, "head is the class FullHead, but a head of condens.nn.HEADS"),
            (MLP(3, 8), nn.Linear(8, 2), "head is Linear"),
            (FullHead(8, 2), MLP(3, 8), "head is MLP"),
        ],
    )
    def test_what_are_no_parts(self, backbone, head, text):
        with pytest.raises(ArgumentError) as raised:
            MixtureNetwork(backbone, head)
        assert str(raised.value).startswith(text)

    def test_a_single_condition_stays_single(self):
        network = MixtureNetwork.of(3, 2)
        assert network(torch.zeros(3)).batch_shape == ()
        assert network(torch.zeros(4, 5, 3)).batch_shape == (4, 5)
