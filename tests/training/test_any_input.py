"""What `train` is called with and under: it works, or says by name what to do."""

import json
import math
import signal

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from condens import MDNRegressor
from condens.errors import ArgumentError, KindError
from condens.inference import posterior
from condens.nn import HEADS, Ensemble, FullHead, MixtureNetwork
from condens.training import Settings, choose_components, train

SHORT = Settings(epochs=3, batch_size=25, warmup_steps=0, patience=100)


def rows(count=100):
    generator = torch.Generator().manual_seed(0)
    x, z = torch.randn(2, count, 2, generator=generator)
    return x, x + 0.3 * z


def made(**options):
    generator = torch.Generator().manual_seed(1)
    return MixtureNetwork.of(2, 2, n_components=2, width=8, generator=generator, **options)


def weights(network):
    return {name: t.detach().clone() for name, t in network.state_dict().items()}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


class TestModesOfAutograd:
    MODES = (torch.no_grad, torch.inference_mode)

    @pytest.fixture(params=MODES)
    def mode(self, request):
        return request.param

    def test_training_is_the_same_under_each(self, mode):
        expected, network = made(), made()
        train(expected, rows(), SHORT)
        with mode():
            given = rows()  # inference tensors too
            train(network, given, SHORT)
            assert not torch.is_grad_enabled()
            assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
        assert_same(weights(expected), weights(network))
        assert all(p.requires_grad and not p.is_inference() for p in network.parameters())

    def test_fits_too(self, mode):
        x, y = rows()

        def fits():
            model = MDNRegressor(2, n_members=1, width=8, settings=SHORT, random_state=0).fit(x, y)
            return [
                model.network_,
                model.partial_fit(x, y).network_,
                posterior(y, x, settings=SHORT, n_components=2).network,
            ]

        expected = fits()
        with mode():
            found = fits()
        for ours, theirs in zip(expected, found, strict=True):
            assert_same(weights(ours), weights(theirs))

    def test_choices_too(self, mode):
        def make(count):
            return MixtureNetwork.of(2, 2, n_components=count, width=8)

        expected = choose_components(make, rows(), SHORT, max_components=2)
        with mode():
            found = choose_components(make, rows(), SHORT, max_components=2)
        assert found.trials == expected.trials

    def test_networks_made_in_inference_mode_are_refused(self):
        with torch.inference_mode():
            network = made()
        with pytest.raises(ArgumentError) as raised:
            train(network, rows(), SHORT)
        assert str(raised.value) == (
            "network has backbone.layers.0.weight, made under torch.inference_mode, but such "
            "tensors have no gradient. Make the network outside of it."
        )


class TestFrozen:
    def test_all_of_it(self):
        network = made().requires_grad_(False)
        before = weights(network)
        with pytest.raises(ArgumentError) as raised:
            train(network, rows(), SHORT)
        assert str(raised.value) == (
            "network has no parameter that requires a gradient, but training changes some. Call "
            "network.requires_grad_(True), or on the part to be trained."
        )
        assert_same(before, weights(network))

    @pytest.mark.parametrize("covariance", HEADS)
    @pytest.mark.parametrize(
        "frozen", ["backbone", "head.linear.weight", "head.linear.bias", "head", "layers.0"]
    )
    def test_a_part_stays_and_the_rest_moves(self, frozen, covariance):
        network = made(covariance=covariance).prepare(*rows())
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(frozen not in name)
        before = weights(network)
        settings = Settings(epochs=4, batch_size=25, warmup_steps=0, start="keep", average=0.0)
        history = train(network, rows(), settings, validation=rows())
        assert history.best_epoch >= 0
        for name, parameter in network.named_parameters():
            assert torch.equal(parameter, before[name]) == (frozen in name), name
            assert parameter.requires_grad == (frozen not in name)

    @pytest.mark.parametrize("covariance", HEADS)
    def test_the_rest_has_the_gradient_it_has_alone(self, covariance):
        """A fused loss must not lose a gradient because another one is not asked for."""
        x, y = (t.double() for t in rows())
        gradients = []
        for frozen in ("nothing", "head.linear.weight", "head.linear.bias"):
            network = made(covariance=covariance).double().prepare(x, y)
            for name, parameter in network.named_parameters():
                parameter.requires_grad_(frozen not in name)
            network.loss(x, y).backward()
            gradients.append({n: p.grad for n, p in network.named_parameters()})
        for some in gradients[1:]:
            for name, gradient in some.items():
                if gradient is not None:
                    assert_close(gradient, gradients[0][name], rtol=1e-9, atol=1e-12)

    def test_a_head_that_the_start_would_move_is_refused(self):
        network = made()
        network.head.linear.bias.requires_grad_(False)
        with pytest.raises(ArgumentError) as raised:
            train(network, rows(), SHORT)
        assert str(raised.value) == (
            "network has a head whose bias is frozen, but start='data' would move it. "
            "Pass Settings(start='keep')."
        )

    def test_what_the_loss_does_not_depend_on(self):
        class Idle(nn.Module):
            def __init__(self):
                super().__init__()
                self.idle = nn.Parameter(torch.zeros(3))

            def forward(self, condition):
                return condition

        network = MixtureNetwork(Idle(), FullHead(2, 2, 2), condition_columns=2).prepare(*rows())
        network.head.requires_grad_(False)
        with pytest.raises(ArgumentError) as raised:
            train(network, rows(), Settings(epochs=2, start="keep"))
        assert str(raised.value) == (
            "network has a loss without a gradient, but training follows it. Let a parameter "
            "that the loss depends on require a gradient."
        )


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (
            nn.Linear(2, 2),
            "network is a Linear, but a DensityNetwork was expected. Make it the backbone of one: "
            "MixtureNetwork(backbone, head).",
        ),
        (
            MixtureNetwork,
            "network is the class MixtureNetwork, but a DensityNetwork was expected. Pass one, "
            "such as MixtureNetwork.of(conditions, targets).",
        ),
        (
            None,
            "network is a NoneType, but a DensityNetwork was expected. Pass one, such as "
            "MixtureNetwork.of(conditions, targets).",
        ),
    ],
)
def test_networks_that_are_none(network, expected):
    with pytest.raises(KindError) as raised:
        train(network, rows(), SHORT)
    assert str(raised.value) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (
            "settings",
            {"epochs": 2},
            "is a dict, but condens.training.Settings was expected. Pass Settings(epochs=2).",
        ),
        (
            "callbacks",
            [print, "print"],
            "has a str, but functions of an Epoch were expected. Pass one, a list of them, or "
            "leave it out.",
        ),
        (
            "callbacks",
            0,
            "has a int, but functions of an Epoch were expected. Pass one, a list of them, or "
            "leave it out.",
        ),
        (
            "checkpoint_seconds",
            "1",
            "is '1', but a number was expected. Pass the seconds between two states.",
        ),
        (
            "checkpoint_seconds",
            math.nan,
            "is nan, but 0 or more was expected. Pass the seconds between two states.",
        ),
        (
            "checkpoint_seconds",
            -1,
            "is -1, but 0 or more was expected. Pass the seconds between two states.",
        ),
    ],
)
def test_arguments_that_are_none(name, value, expected):
    with pytest.raises(ArgumentError) as raised:
        train(made(), rows(), **{name: value})
    assert str(raised.value) == f"{name} {expected}"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda network: network.head.double(),
            "network is in float32 and float64, but one precision was expected. "
            "Call network.float().",
        ),
        (
            lambda network: network.to("meta"),
            "target is on cpu, but the network is on meta. Move one of them with .to(device).",
        ),
        (
            lambda network: network.backbone.layers[0].weight.data.fill_(math.nan),
            "network has NaN or infinity in backbone.layers.0.weight, but training starts from "
            "its weights. Make the network anew, or load one with finite weights.",
        ),
        (
            lambda network: setattr(network, "backbone", nn.LazyLinear(8)),
            "network has backbone.weight, which has no shape yet, but every layer's size is "
            "needed. Call the backbone once with some standardised conditions.",
        ),
    ],
)
def test_networks_that_cannot_start(change, expected):
    network = made()
    change(network)
    with pytest.raises(ArgumentError) as raised:
        train(network, rows(), SHORT)
    assert str(raised.value) == expected


def test_nan_that_a_run_directory_replaces_is_no_error(tmp_path):
    expected = made()
    train(expected, rows(), SHORT, directory=tmp_path)
    network = made()
    network.head.linear.weight.data.fill_(math.nan)
    train(network, rows(), SHORT, directory=tmp_path)
    assert_same(weights(expected), weights(network))


@pytest.mark.parametrize("covariance", ["full", "low_rank"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_ends_finite_and_better(dtype, covariance):
    network = made(covariance=covariance).to(dtype)
    settings = Settings(epochs=30, batch_size=25, warmup_steps=0, learning_rate=1e-2)
    history = train(network, rows(), settings)
    assert all(t.isfinite().all() for t in network.state_dict().values())
    assert history.best_nll < history.epochs[0].validation_nll - 0.2
    assert network.dtype == dtype


class TestMode:
    @pytest.mark.parametrize("training", [True, False])
    def test_every_way_out_is_in_evaluation(self, training):
        network = made(dropout=0.2).train(training)
        train(network, rows(), SHORT)
        assert not any(module.training for module in network.modules())

    def test_hooks_on_the_backbone_see_every_step(self):
        network, seen = made(), []
        network.backbone.register_forward_hook(
            lambda module, _, out: seen.append((module.training, len(out)))
        )
        train(network, rows(), SHORT)
        assert [size for training, size in seen if training] == 3 * [25, 25, 25, 15]

    def test_a_hook_that_raises_leaves_the_best_weights(self):
        network, steps = made(), []

        def fail(module, *_):
            steps.extend([1] if module.training else [])
            if len(steps) == 7:
                raise LookupError

        network.backbone.register_forward_hook(fail)
        with pytest.raises(LookupError):
            train(network, rows(), SHORT)
        other = made()
        other.backbone.register_forward_hook(lambda *_: None)  # the same draws
        with pytest.warns(UserWarning, match="interrupted after epoch 1"):
            train(other, rows(), SHORT, callbacks=lambda _: signal.raise_signal(signal.SIGINT))
        assert_same(weights(other), weights(network))
        assert not network.training


class TestCallbacks:
    def test_what_it_raises_comes_through_and_the_run_can_go_on(self, tmp_path):
        expected, whole = made(dropout=0.2), []
        train(expected, rows(), SHORT, callbacks=whole.append)
        network, seen = made(dropout=0.2), []

        def fail(epoch):
            seen.append(epoch)
            if epoch.epoch == 1:
                raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            train(network, rows(), SHORT, callbacks=fail, directory=tmp_path)
        state = json.loads(max(tmp_path.glob("state-*.json")).read_text())["values"]
        assert (state["position"]["epoch"], state["position"]["batch"]) == (2, 0)
        assert network.loss(*rows()).isfinite()
        train(network, rows(), SHORT, callbacks=fail, directory=tmp_path)
        # No epoch twice, none left out.
        assert [epoch.epoch for epoch in seen] == [epoch.epoch for epoch in whole]
        assert_same(weights(expected), weights(network))

    def test_a_network_that_was_used_is_still_that_of_its_run(self, tmp_path):
        """What modules remember of their last use does not make another network."""
        network = made(dropout=0.2)
        train(network, rows(), SHORT, directory=tmp_path)
        before = weights(network)
        network(rows()[0])
        train(network, rows(), SHORT, directory=tmp_path)
        assert_same(before, weights(network))

    def test_may_train_another_network(self):
        expected, network = made(dropout=0.2), made(dropout=0.2)
        train(expected, rows(), SHORT)
        train(network, rows(), SHORT, callbacks=lambda _: train(made(dropout=0.2), rows(), SHORT))
        assert_same(weights(expected), weights(network))

    def test_draws_of_a_callback_do_not_matter(self):
        expected, network = made(dropout=0.2), made(dropout=0.2)
        train(expected, rows(), SHORT)
        train(network, rows(), SHORT, callbacks=lambda _: torch.rand(3))
        assert_same(weights(expected), weights(network))


class TestChoices:
    @pytest.mark.parametrize(
        "make",
        [
            lambda _: nn.Linear(2, 2),
            lambda _: Ensemble([made()]),
            lambda _: None,
        ],
    )
    def test_what_makes_no_network_is_named(self, make):
        with pytest.raises(KindError, match=r"^make returned a .*, but a MixtureNetwork was"):
            choose_components(make, rows(), SHORT)

    @pytest.mark.parametrize("count", [0, -1, 2.5, "4"])
    def test_no_number_to_begin_with(self, count):
        with pytest.raises(
            ArgumentError, match=r"^max_components is .* Pass the number to begin with\.$"
        ):
            choose_components(lambda _: made(), rows(), SHORT, max_components=count)

    @pytest.mark.parametrize("moment", [0, 2, 4])
    def test_an_interruption_ends_it_at_what_was_chosen_so_far(self, moment):
        """Three epochs of four components; the others get one."""
        seen = []

        def interrupt(epoch):
            seen.append(epoch)
            if len(seen) == moment + 1:
                signal.raise_signal(signal.SIGINT)

        def make(count):
            return MixtureNetwork.of(2, 2, n_components=count, width=8)

        with pytest.warns(UserWarning, match=r"^The choice was interrupted; its network was"):
            chosen = choose_components(make, rows(), SHORT, max_components=4, callbacks=interrupt)
        assert len(seen) == moment + 1
        assert chosen.history.stopped == "interrupted"
        assert len(chosen.trials) == (1 if moment < 3 else 2)
        assert chosen.network.loss(*rows()).isfinite()
