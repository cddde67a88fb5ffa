"""Steps that go wrong, and what is said of networks that are no good."""

import json
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from scipy import stats

from condens.errors import (
    ArgumentError,
    CollapsedComponentsWarning,
    IllConditionedWarning,
    TrainingError,
    UnexplainedRowsWarning,
    UnusedComponentsWarning,
)
from condens.nn import MLP, FullHead, MixtureNetwork
from condens.training import History, Settings, train
from condens.training.diagnostics import diagnose, problems

NAN = math.nan


class FaultyHead(FullHead):
    """Spoils the loss of chosen training steps, counted from 1; remembers its weights."""

    def __init__(self, *arguments, bad, how="loss"):
        super().__init__(*arguments)
        self.bad, self.how, self.count, self.seen, self.losses = bad, how, 0, [], []

    def loss(self, features, target, weights=None, **options):
        loss = super().loss(features, target, weights, **options)
        if not self.training:
            return loss
        self.count += 1
        self.losses.append(loss.item())
        self.seen.append(self.linear.weight.detach().clone())
        if not self.bad(self.count):
            return loss
        if self.how == "gradient":
            # Zero, with a slope that is 0 · ∞.
            return loss + (0 * self.linear.bias).abs().sum().sqrt()
        if self.how == "error":
            torch.linalg.cholesky(torch.full((2, 2), NAN))
        return loss * (NAN if self.how == "loss" else math.inf)


def data(rows=400):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 2, generator=generator)
    return x, x + 0.3 * torch.randn(rows, 2, generator=generator)


def faulty(bad, how="loss"):
    torch.manual_seed(3)
    return MixtureNetwork(MLP(2, 8), FaultyHead(8, 2, 2, bad=bad, how=how), condition_columns=2)


def settings(**changes):
    """Return settings with ten steps an epoch and a rate that only failures change."""
    return Settings(
        **{"epochs": 2, "batch_size": 36, "schedule": "constant", "warmup_steps": 0} | changes
    )


@pytest.mark.parametrize("how", ["loss", "infinite", "gradient", "error"])
def test_bad_steps_are_left_out_and_counted(how):
    network = faulty({2, 5, 6, 7, 8, 13}.__contains__, how)
    history = train(network, data(), settings())
    assert [epoch.skipped_steps for epoch in history.epochs] == [5, 1]
    assert [epoch.steps for epoch in history.epochs] == [10, 10]
    assert all(math.isfinite(epoch.train_nll) for epoch in history.epochs)
    assert history.epochs[-1].rate == settings().learning_rate
    seen = network.head.seen
    for step in range(1, 20):
        moved = not torch.equal(seen[step - 1], seen[step])
        assert moved == (step not in {2, 5, 6, 7, 8, 13})


def test_the_loss_of_an_epoch_is_that_of_its_good_steps():
    network = faulty(lambda count: count > 1)
    whole = settings(epochs=1, batch_size=60, validation_fraction=0.0)
    history = train(network, data(72), whole)
    assert history.epochs[0].skipped_steps == 1
    own_units = network.target_scaling.scale.log().sum().item()
    expected = network.head.losses[0] + own_units
    assert history.epochs[0].train_nll == pytest.approx(expected, rel=1e-6)


def test_an_epoch_without_a_good_step_changes_nothing():
    network = faulty(lambda _: True)
    history = train(network, data(), settings(epochs=1, batch_size=90))
    assert history.epochs[0].skipped_steps == 4
    assert math.isnan(history.epochs[0].train_nll)
    assert history.best_epoch == -1
    untouched = faulty(lambda _: False)
    train(untouched, data(), settings(epochs=1, learning_rate=1e-30, weight_decay=0.0))
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, untouched.state_dict()[name]), name


def test_a_first_validation_that_is_not_finite_can_be_improved_on():
    class Late(FullHead):
        validations = 0

        def loss(self, features, target, weights=None, **options):
            loss = super().loss(features, target, weights, **options)
            self.validations += not self.training
            return loss * (NAN if self.validations == 1 and not self.training else 1.0)

    torch.manual_seed(3)
    network = MixtureNetwork(MLP(2, 8), Late(8, 2, 2), condition_columns=2)
    history = train(network, data(), settings(epochs=2))
    losses = [epoch.validation_nll for epoch in history.epochs]
    assert history.best_nll == min(losses) == losses[history.best_epoch]


@pytest.mark.parametrize("how", ["loss", "error"])
def test_after_five_in_a_row_the_weights_go_back_and_the_rate_falls(how):
    network = faulty(lambda count: 14 <= count <= 18, how)
    history = train(network, data(), settings())
    seen = network.head.seen
    # Call 11 begins the second epoch; call 19 is the first after the fifth bad one.
    assert torch.equal(seen[19 - 1], seen[11 - 1])
    assert not torch.equal(seen[13 - 1], seen[11 - 1])
    rate = settings().learning_rate
    assert [epoch.rate for epoch in history.epochs] == pytest.approx([rate, 0.3 * rate])
    assert not torch.equal(seen[20 - 1], seen[19 - 1])


def test_four_in_a_row_are_not_five():
    history = train(faulty(lambda count: count % 5), data(), settings())
    assert history.epochs[-1].rate == settings().learning_rate


def test_weights_that_diverged_are_not_the_ones_to_return_to():
    """One step an epoch: the bad weights see several epochs begin."""

    class Poisoned(FaultyHead):
        def loss(self, features, target, weights=None, **options):
            if self.training and self.count == 3:
                self.linear.bias.data[0] = math.inf
            return super().loss(features, target, weights, **options)

    torch.manual_seed(3)
    head = Poisoned(8, 2, 2, bad=lambda _: False)
    network = MixtureNetwork(MLP(2, 8), head, condition_columns=2)
    history = train(network, data(100), settings(epochs=12, batch_size=100, average=0.0))
    assert [math.isfinite(e.validation_nll) for e in history.epochs] == 3 * [1] + 4 * [0] + 5 * [1]
    assert history.best_nll < history.epochs[2].validation_nll


class TestGivingUp:
    def test_says_where_and_what_to_do(self):
        with pytest.raises(TrainingError) as raised:
            train(faulty(lambda count: count > 12), data(), settings(epochs=9))
        text = str(raised.value)
        # Thirty bad steps: calls 13 to 42, the last of them the second of epoch 5.
        assert text.startswith(
            "The loss or its gradient was not finite 2 times in epoch 5, last in batch 2 (loss nan)"
        )
        for part in (
            "going back 5 times",
            "The worst parameter is",
            "learning_rate",
            "clip",
            "floor",
            "target_noise",
            "outliers",
            "The best weights so far are in the network.",
        ):
            assert part in text
        copied = pickle.loads(pickle.dumps(raised.value))  # as from the worker of a search
        assert (str(copied), copied.reason) == (text, raised.value.reason)

    def test_names_the_worst_parameter(self):
        with pytest.raises(TrainingError, match=r"worst parameter is head\.linear\.bias\."):
            train(faulty(lambda _: True, "gradient"), data(), settings(epochs=9))

    def test_leaves_the_best_weights(self):
        network = faulty(lambda count: count > 10)
        with pytest.raises(TrainingError):
            train(network, data(), settings(epochs=9))
        healthy = faulty(lambda _: False)
        history = train(healthy, data(), settings(epochs=1))
        assert history.best_epoch == 0
        assert not network.training
        for name, tensor in network.state_dict().items():
            assert tensor.isfinite().all()
            assert torch.equal(tensor, healthy.state_dict()[name]), name

    def test_leaves_a_state_that_tells(self, tmp_path):
        with pytest.raises(TrainingError):
            train(faulty(lambda count: count > 10), data(), settings(epochs=9), directory=tmp_path)
        last = max(tmp_path.glob("state-*.json"))
        assert json.loads(last.read_text())["values"]["history"]["stopped"] == "failed"
        assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])["epoch"] == 0
        # Without the fault, the same call goes on.
        history = train(faulty(lambda _: False), data(), settings(epochs=9), directory=tmp_path)
        assert history.stopped == "all epochs"
        assert len(history.epochs) == 9


class TestDiagnosis:
    CENTRES = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0], [0.0, -4.0]])

    def network(self, means=CENTRES, logits=None, scales=None, n_components=4):
        """Return a network whose answer is the same for every condition."""
        network = MixtureNetwork.of(1, 2, n_components=n_components, width=4, floor=1e-9).eval()
        logits = torch.zeros(n_components) if logits is None else logits
        scales = torch.zeros(n_components, 3) if scales is None else scales
        with torch.no_grad():
            network.head.linear.weight.zero_()
            bias = torch.cat([logits, means.flatten(), scales.flatten()])
            network.head.linear.bias.copy_(bias)
        return network

    def look(self, network, target=None):
        """Return the diagnosis and the advice, on samples of the network by default."""
        condition = torch.zeros(200, 1)
        if target is None:
            target = network(condition).sample()
        found = diagnose(network, condition[: len(target)], target)
        return found, problems(found, n_rows=200)

    def test_a_healthy_one_has_no_advice(self):
        found, advice = self.look(self.network())
        assert advice == []
        assert found.used_components == pytest.approx(4, rel=0.05)
        assert found.distinct_components == pytest.approx(4, rel=0.15)
        assert found.largest_condition_number == pytest.approx(1)
        assert found.unexplained_fraction == 0
        assert found.usage == pytest.approx(4 * [0.25], abs=0.1)

    def test_all_alike(self):
        found, advice = self.look(self.network(torch.zeros(4, 2)))
        assert found.used_components == pytest.approx(4)
        assert found.distinct_components == pytest.approx(1)
        assert [str(one)[:31] for one in advice] == ["All 4 components are alike: one"]
        assert [type(one) for one in advice] == [CollapsedComponentsWarning]

    def test_all_weight_on_one(self):
        found, advice = self.look(self.network(logits=torch.tensor([20.0, 0.0, 0.0, 0.0])))
        assert found.used_components == pytest.approx(1, abs=1e-3)
        assert [str(one)[:41] for one in advice] == ["Nearly all weight is on one of 4 componen"]
        assert [type(one) for one in advice] == [UnusedComponentsWarning]

    def test_rows_that_nobody_explains(self):
        network = self.network()
        target = network(torch.zeros(200, 1)).sample()
        target[::10] += 50
        found, advice = self.look(network, target)
        assert found.unexplained_fraction == pytest.approx(0.1)
        assert [str(one)[:52] for one in advice] == [
            "10.0% of the validation rows are explained by no com"
        ]
        assert [type(one) for one in advice] == [UnexplainedRowsWarning]

    def test_a_degenerate_covariance(self):
        scales = torch.tensor([[0.0, 0.0, 300.0]])
        found, advice = self.look(self.network(torch.zeros(1, 2), scales=scales, n_components=1))
        upper = np.array([[1.0, 300.0], [0.0, 1.0]])
        expected = np.linalg.cond(np.linalg.inv(upper.T @ upper))
        assert found.largest_condition_number == pytest.approx(expected, rel=1e-3)
        assert advice == []
        scales = torch.tensor([[0.0, 0.0, 1000.0]])
        found, advice = self.look(self.network(torch.zeros(1, 2), scales=scales, n_components=1))
        assert [str(one)[:43] for one in advice] == ["A covariance has condition number 1e+12: so"]
        assert [type(one) for one in advice] == [IllConditionedWarning]

    def test_one_component_is_neither_alike_nor_collapsed(self):
        assert self.look(self.network(torch.zeros(1, 2), n_components=1))[1] == []

    def test_what_has_diverged_is_no_error(self):
        network = self.network(scales=torch.full((4, 3), NAN))
        found, advice = self.look(network, torch.zeros(5, 2))
        assert found.largest_condition_number == math.inf
        assert any("condition number inf" in str(one) for one in advice)

    def test_rows_with_gaps_are_not_looked_at(self):
        network = self.network()
        target = network(torch.zeros(200, 1)).sample()
        expected = self.look(network, target[100:])[0]
        target[:100, 0] = NAN
        assert self.look(network, target)[0] == expected
        found, advice = self.look(network, torch.full((5, 2), NAN))
        assert math.isnan(found.used_components)
        assert advice == []

    @pytest.mark.parametrize("dimensions", [1, 2, 10, 100])
    @pytest.mark.parametrize("covariance", ["full", "isotropic"])
    def test_the_limit_is_the_quantile_of_chi_square(self, dimensions, covariance):
        network = MixtureNetwork.of(1, dimensions, n_components=1, covariance=covariance, floor=0.0)
        for parameter in network.head.parameters():
            torch.nn.init.zeros_(parameter)
        network.double()
        limit = math.sqrt(stats.chi2.isf(1e-6, dimensions))
        direction = torch.nn.functional.normalize(torch.randn(1, dimensions).double(), dim=1)
        target = torch.tensor([[0.999], [1.001], [1.1]]).double() * limit * direction
        found = diagnose(network, torch.zeros(3, 1).double(), target)
        assert found.unexplained_fraction == pytest.approx(2 / 3)

    def test_training_warns_once_with_the_callers_line(self):
        network = self.network(torch.zeros(4, 2)).train()
        # A rate of nothing and no start: what comes in goes out.
        still = Settings(epochs=1, learning_rate=1e-30, weight_decay=0.0, start="zero")
        x, y = torch.zeros(100, 1), torch.randn(100, 2)
        with pytest.warns(CollapsedComponentsWarning, match="All 4 components are alike") as caught:
            history = train(network, (x, y), still)
        assert [str(w.message) for w in caught] == history.warnings
        assert [w.category.__name__ for w in caught] == history.warning_classes
        assert [w.filename for w in caught] == [__file__]

    def test_the_classes_come_back_through_json(self):
        network = self.network(torch.zeros(4, 2)).train()
        still = Settings(epochs=1, learning_rate=1e-30, weight_decay=0.0, start="zero")
        x, y = torch.zeros(100, 1), torch.randn(100, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            history = train(network, (x, y), still, warn=False)
        again = History.from_dict(json.loads(json.dumps(history.to_dict())))
        assert again == history
        with pytest.warns(CollapsedComponentsWarning) as caught:
            again.warn()
        assert [w.filename for w in caught] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.warn(ignore=(CollapsedComponentsWarning,))

    @pytest.mark.parametrize(
        "changes",
        [
            {"warnings": ["one"]},
            {"warning_classes": ["UnusedComponentsWarning"]},
            {"warnings": ["one"], "warning_classes": ["Warning"]},
            {"warnings": ["one"], "warning_classes": ["KindError"]},
            {"warnings": ["one"], "warning_classes": [3]},
        ],
        ids=str,
    )
    def test_other_classes_are_refused(self, changes):
        with pytest.raises(ArgumentError, match="warning_classes"):
            History.from_dict(History().to_dict() | changes)

    def test_a_healthy_training_warns_of_nothing(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = train(faulty(lambda _: False), data(), settings(epochs=5))
        assert history.warnings == []
        assert caught == []
