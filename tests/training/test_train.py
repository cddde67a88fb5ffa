"""Training: reaches the optimum, reproducibly, with every setting doing what it says."""

import csv
import io
import json
import math
import sys

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from condens.data import Rows
from condens.errors import ArgumentError, ShapeError
from condens.functional.losses import report_printed_form, uniform_bound, weighted_bound
from condens.nn import FullHead, MixtureNetwork
from condens.nn.randomness import RowDraws
from condens.training import Settings, train
from condens.training.batches import Batches, Noise, batch_size
from condens.training.history import Epoch, History
from condens.training.objective import objective
from condens.training.progress import Progress

NAN = math.nan


def made(conditions=1, targets=1, seed=3, dtype=torch.float64, **options):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        options = {"n_components": 2, "width": 16, **options}
        return MixtureNetwork.of(conditions, targets, **options).to(dtype)


def truth(rows, seed=0):
    """Return x, y with y | x normal, mean 2x and scale exp(0.4 x − 1), and −log p of each y."""
    generator = torch.Generator().manual_seed(seed)
    x, z = torch.randn(2, rows, 1, dtype=torch.float64, generator=generator)
    log_scale = 0.4 * x - 1
    nll = 0.5 * z.square() + log_scale + 0.5 * math.log(2 * math.pi)
    return x, 2 * x + log_scale.exp() * z, nll


def bell(rows=200, seed=0, columns=2):
    """Return a condition and correlated targets."""
    generator = torch.Generator().manual_seed(seed)
    x, z = torch.randn(2, rows, columns, dtype=torch.float64, generator=generator)
    z[:, 1:] += 1.5 * z[:, :1]
    return x, 10 + x + z


def same(one, other):
    return all(torch.equal(t, other.state_dict()[name]) for name, t in one.state_dict().items())


def short(**changes):
    return Settings(**{"epochs": 2, "batch_size": 50, "learning_rate": 3e-3} | changes)


class TestOptimum:
    @pytest.mark.parametrize("schedule", ["cosine", "constant", "plateau"])
    def test_reaches_the_loss_of_the_truth(self, schedule):
        x, y, _ = truth(4000)
        network = made(dtype=torch.float32)
        history = train(
            network,
            (x, y),
            Settings(epochs=25, batch_size=200, learning_rate=5e-3, schedule=schedule),
        )
        x, y, exact = truth(4000, seed=1)
        excess = network.loss(x, y).item() - exact.mean().item()
        # What 400 parameters can overfit on 3600 rows; never better than the truth by chance.
        assert -0.01 < excess < 0.05
        assert history.epochs[0].train_nll > history.epochs[-1].train_nll + 0.1
        with torch.no_grad():
            grid = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
            mixture = network.double()(grid)
        assert_close(mixture.mean, 2 * grid, atol=0.15, rtol=0)
        assert_close(mixture.variance.sqrt().log(), 0.4 * grid - 1, atol=0.25, rtol=0)

    def test_missing_targets_beat_dropping_their_rows(self):
        x, y = bell(400, columns=3)
        generator = torch.Generator().manual_seed(1)
        gaps = torch.rand(y.shape, generator=generator) < 0.6
        partial = y.masked_fill(gaps, NAN)
        whole = ~gaps.any(1)
        losses = []
        test = bell(2000, seed=5, columns=3)
        for data in ((x, partial), (x[whole], y[whole])):
            network = made(3, 3, n_components=1)
            history = train(network, data, short(epochs=60, batch_size=20))
            losses.append(network.loss(*test).item())
        assert history.rows + history.validation_rows == int(whole.sum()) < 40
        assert losses[0] < losses[1] - 0.1


class TestReproducible:
    def test_the_seed_decides_every_byte(self):
        options = {"dropout": 0.3}
        noisy = {"condition_noise": 0.1, "target_noise": 0.1}
        networks, histories = [], []
        for seed in (1, 1, 2):
            networks.append(made(2, 2, **options))
            histories.append(train(networks[-1], bell(), short(seed=seed, **noisy)))
            torch.rand(7)  # the generator outside does not matter
        assert same(networks[0], networks[1])
        assert not same(networks[0], networks[2])
        losses = [[e.train_nll for e in history.epochs] for history in histories]
        assert losses[0] == losses[1] != losses[2]

    def test_the_generator_outside_is_left_alone(self, tmp_path):
        before = torch.get_rng_state()
        train(made(2, 2, dropout=0.3), bell(), short(target_noise=0.1), directory=tmp_path)
        assert torch.equal(torch.get_rng_state(), before)

    def test_data_are_left_alone(self):
        x, y = bell()
        weights = torch.rand(200, dtype=torch.float64)
        kept = [t.clone() for t in (x, y, weights)]
        train(made(2, 2), (x, y, weights), short(target_noise=0.1, condition_noise=0.1))
        assert all(torch.equal(a, b) for a, b in zip(kept, (x, y, weights), strict=True))

    @pytest.mark.parametrize("kind", ["lists", "arrays", "rows"])
    def test_however_the_data_come(self, kind):
        x, y = bell()
        data = {
            "lists": (x.tolist(), y.tolist()),
            "arrays": (x.numpy(), y.numpy()),
            "rows": Rows.of(x, y),
        }[kind]
        networks = made(2, 2), made(2, 2)
        train(networks[0], (x, y), short())
        train(networks[1], data, short())
        assert same(*networks)


class TestWeights:
    COUNTS = torch.tensor([0, 1, 2, 3]).repeat(50)

    def test_whole_weights_are_repeated_rows_in_the_loss(self):
        """Exactly, on a full batch, of every term."""
        x, y = bell()
        y[::7, 0] = NAN
        network = made(2, 2).prepare(x, y)
        again = torch.repeat_interleave(torch.arange(200), self.COUNTS)
        for settings in (short(), short(entropy=0.3)):
            losses = [
                objective(network, settings, 0, batch)
                for rows in (Rows.of(x, y, self.COUNTS), Rows.of(x[again], y[again]))
                for batch in Batches(network, rows).in_order(1000)
            ]
            assert_close(*losses, rtol=1e-10, atol=1e-12)

    def test_whole_weights_are_repeated_rows_in_validation(self):
        x, y = bell(seed=1)
        again = torch.repeat_interleave(torch.arange(200), self.COUNTS)
        histories = [
            train(made(2, 2), bell(), short(), validation=validation)
            for validation in ((x, y, self.COUNTS), (x[again], y[again]))
        ]
        weighted, repeated = ([e.validation_nll for e in h.epochs] for h in histories)
        assert weighted == pytest.approx(repeated, rel=1e-10)

    def test_any_multiple_of_the_weights_is_the_same(self):
        x, y = bell()
        weights = torch.rand(200, dtype=torch.float64)
        # By a power of two, which rounds nothing.
        networks = made(2, 2), made(2, 2)
        for network, factor in zip(networks, (1.0, 2.0**40), strict=True):
            train(network, (x, y, factor * weights), short())
        assert same(*networks)

    def test_rows_without_weight_do_not_matter(self):
        x, y = bell()
        junk = torch.full((30, 2), 1e9, dtype=torch.float64)
        networks = made(2, 2), made(2, 2)
        train(networks[0], (x, y, torch.ones(200)), short())
        data = (torch.cat([junk, x]), torch.cat([junk, y]), torch.ones(230))
        data[2][:30] = 0
        history = train(networks[1], data, short())
        assert same(*networks)
        assert history.rows_left_out == 30

    def test_the_fit_is_of_the_weighted_rows(self):
        y = torch.tensor([0.0, 1.0]).repeat(200).double()
        weights = torch.tensor([3.0, 1.0]).repeat(200)
        x = torch.zeros(400, 1, dtype=torch.float64)
        network = made(n_components=1)
        train(network, (x, y, weights), short(epochs=80, batch_size=400, learning_rate=0.02))
        mixture = network(x[:1])
        assert mixture.mean.item() == pytest.approx(0.25, abs=0.05)
        assert mixture.variance.item() == pytest.approx(0.1875, abs=0.05)


class TestObjective:
    BOUNDS = {  # noqa: RUF012
        "weighted": weighted_bound,
        "uniform": uniform_bound,
        "printed": report_printed_form,
    }

    def batch(self, network, weights=None, gaps=False):
        x, y = bell()
        network.prepare(x, y)
        if gaps:
            y[::3, 1] = NAN
        return next(Batches(network, Rows.of(x, y, weights)).in_order(1000))

    @pytest.mark.parametrize("bound", BOUNDS)
    def test_a_bound_at_first_and_the_exact_loss_then(self, bound):
        network = made(2, 2)
        weights = torch.rand(200, dtype=torch.float64)
        batch = self.batch(network, weights)
        settings = short(bound=bound, bound_epochs=3)
        parameters = network.head.parameters_of(network.features(batch.condition))
        each = self.BOUNDS[bound](batch.target, *parameters)
        normalised = weights / weights.sum()
        for epoch in (0, 2):
            found = objective(network, settings, epoch, batch)
            assert_close(found, (normalised * each).sum(), rtol=1e-10, atol=1e-12)
        exact = network.standard_loss(*batch)
        assert_close(objective(network, settings, 3, batch), exact, rtol=0, atol=0)
        assert abs(exact - (normalised * each).sum()) > 1e-3

    @pytest.mark.parametrize("bound", BOUNDS)
    def test_a_bound_is_over_the_complete_rows(self, bound):
        network = made(2, 2)
        batch = self.batch(network, gaps=True)
        whole = ~batch.target.isnan().any(1)
        settings = short(bound=bound)
        only = Rows(batch.condition[whole], batch.target[whole])
        expected = objective(network, settings, 0, only)
        # The others count as rows of bound zero: parts of a batch add up, with weights or without.
        expected = expected * whole.double().mean()
        assert_close(objective(network, settings, 0, batch), expected)
        even = torch.full((len(batch),), 1 / len(batch), dtype=torch.float64)
        assert_close(objective(network, settings, 0, Rows(*batch[:2], even)), expected)
        none = Rows(batch.condition[~whole], batch.target[~whole])
        loss = objective(network, settings, 0, none)
        loss.backward()
        assert loss == 0

    @pytest.mark.parametrize("bound", BOUNDS)
    def test_every_bound_trains(self, bound):
        x, y, _ = truth(500)
        network = made(n_components=3)
        history = train(network, (x, y), short(epochs=6, bound=bound))
        assert history.best_nll < history.epochs[0].validation_nll + 1e-9
        assert network.loss(x, y).isfinite()

    def test_entropy_rewards_even_weights(self):
        network = made(2, 2, n_components=3)
        weights = torch.rand(200, dtype=torch.float64)
        batch = self.batch(network, weights)
        torch.nn.init.normal_(network.head.linear.bias)
        probabilities = network.head(network.features(batch.condition)).weights
        entropy = -(probabilities * probabilities.log()).sum(-1)
        plain = objective(network, short(), 0, batch)
        found = objective(network, short(entropy=0.7), 0, batch)
        expected = plain - 0.7 * (weights / weights.sum() * entropy).sum()
        assert_close(found, expected, rtol=1e-9, atol=1e-12)


class TestSchedules:
    def rates(self, **changes):
        """Return the rates at the ends of epochs of one step, whose next step would have them."""
        x, y = bell(40)
        settings = short(**{"batch_size": 100, "epochs": 6, "learning_rate": 0.01} | changes)
        history = train(made(2, 2), (x, y), settings, validation=(x, y))
        return [epoch.rate for epoch in history.epochs]

    def test_constant(self):
        assert self.rates(schedule="constant", warmup_steps=0) == 6 * [0.01]

    def test_warm_up_is_a_line(self):
        found = self.rates(schedule="constant", warmup_steps=4)
        assert found == pytest.approx([0.004, 0.006, 0.008, 0.01, 0.01, 0.01])

    def test_cosine_ends_at_zero(self):
        expected = [0.005 * (1 + math.cos(math.pi * n / 6)) for n in range(1, 7)]
        assert self.rates(schedule="cosine", warmup_steps=0) == pytest.approx(expected)

    def test_plateau_halves_when_nothing_gets_better(self):
        still = {"learning_rate": 1e-30, "weight_decay": 0.0, "warmup_steps": 0}
        found = self.rates(schedule="plateau", patience=6, epochs=20, **still)
        # The rate at the end of an epoch is from before the epoch is judged.
        assert found == pytest.approx([1e-30, 1e-30, 5e-31, 5e-31, 2.5e-31, 2.5e-31])

    def test_the_optimiser_follows(self):
        """The first step of Adam is as long as the rate, in every entry."""
        x, y = bell(40)
        network = made(2, 2)
        network.prepare(x, y, generator=torch.Generator().manual_seed(0))
        before = network.head.linear.bias.detach().clone()
        settings = short(epochs=1, batch_size=100, average=0.0, warmup_steps=3, weight_decay=0.0)
        history = train(network, (x, y), settings, validation=(x, y))
        assert history.best_epoch == 0
        step = (network.head.linear.bias - before).abs()
        assert_close(step, torch.full_like(step, 3e-3 / 4), rtol=1e-3, atol=0)

    def test_only_matrices_decay(self):
        x, y = bell(40)
        networks = made(2, 2), made(2, 2)
        for network, decay in zip(networks, (0.0, 0.5), strict=True):
            settings = short(epochs=1, batch_size=100, average=0.0, weight_decay=decay)
            train(network, (x, y), settings, validation=(x, y))
        plain, decayed = (dict(network.named_parameters()) for network in networks)
        for name in plain:
            assert torch.equal(plain[name], decayed[name]) == (plain[name].dim() == 1)


@pytest.mark.parametrize("clip", [1e-3, 1e9])
def test_clipping_bounds_the_norm(clip):
    norms, network = [], made(2, 2)
    # By autograd: the native kernel keeps its gradients for itself.
    network.backbone.register_forward_hook(lambda *_: None)

    def look(_):
        """See the gradient that the last step of an epoch took."""
        squares = [float(p.grad.square().sum()) for p in network.parameters()]
        norms.append(math.sqrt(sum(squares)))

    train(network, bell(), short(clip=clip), callbacks=look)
    assert len(norms) == 2
    if clip < 1:
        assert norms == pytest.approx(2 * [clip], rel=1e-3)
    else:
        assert max(norms) > 0.01


class TestStopping:
    def overfit(self, **changes):
        x, y = bell(30)
        network = made(2, 2, width=64, n_components=4)
        settings = short(
            **{
                "epochs": 200,
                "batch_size": 10,
                "learning_rate": 0.02,
                "patience": 8,
                "schedule": "constant",
            }
            | changes
        )
        held_out = bell(100, seed=9)
        return network, train(network, (x, y), settings, validation=held_out), held_out

    def test_stops_early_with_the_best_weights(self):
        network, history, held_out = self.overfit()
        losses = [epoch.validation_nll for epoch in history.epochs]
        assert history.stopped == "no better validation loss"
        assert len(losses) == history.best_epoch + 1 + 8
        assert history.best_nll == min(losses) == losses[history.best_epoch]
        assert network.loss(*held_out).item() == pytest.approx(history.best_nll, rel=1e-9)
        assert losses[-1] > history.best_nll + 0.1
        assert not network.training

    def test_without_an_average_too(self):
        network, history, held_out = self.overfit(average=0.0)
        assert network.loss(*held_out).item() == pytest.approx(history.best_nll, rel=1e-9)

    def test_weights_that_never_got_better_are_the_first(self):
        network, history, held_out = self.overfit(learning_rate=1e4, epochs=3, warmup_steps=0)
        assert history.best_epoch == -1
        assert history.stopped == "all epochs"
        assert network.loss(*held_out).item() == pytest.approx(history.best_nll, rel=1e-9)

    def test_validation_rows_are_not_trained_on(self):
        x, y = bell()
        networks = made(2, 2), made(2, 2)
        # Other rows, but the last epoch is the best for both.
        for network, seed in zip(networks, (1, 2), strict=True):
            history = train(network, (x, y), short(), validation=bell(seed=seed))
            assert history.best_epoch == 1
            assert (history.rows, history.validation_rows) == (200, 200)
        assert same(*networks)

    def test_a_share_is_held_out(self):
        history = train(made(2, 2), bell(), short(validation_fraction=0.25))
        assert (history.rows, history.validation_rows) == (150, 50)
        assert [epoch.steps for epoch in history.epochs] == [3, 3]

    def test_no_fraction_validates_on_the_training_rows(self):
        x, y = bell()
        network = made(2, 2)
        history = train(network, (x, y), short(validation_fraction=0.0))
        assert (history.rows, history.validation_rows) == (200, 0)
        assert network.loss(x, y).item() == pytest.approx(history.best_nll, rel=1e-9)

    def test_validation_rows_that_do_not_fit_are_refused(self):
        x, y = bell()
        with pytest.raises(ShapeError, match=r"target has shape \[200, 1\]"):
            train(made(2, 2), (x, y), short(), validation=(x, y[:, :1]))
        with pytest.raises(ShapeError, match=r"condition has shape \[200, 1\]"):
            train(made(2, 2), (x, y), short(), validation=(x[:, :1], y))


class TestPrecision:
    @pytest.mark.filterwarnings("ignore:TF32 acceleration")
    def test_bfloat16_is_finite_and_close(self):
        x, y, _ = truth(1000)
        losses = []
        for autocast in (False, True):
            network = made(dtype=torch.float32)
            # oneDNN's instructions for bfloat16 are illegal on some virtual machines.
            with torch.backends.mkldnn.flags(enabled=False):
                train(network, (x, y), short(epochs=15, autocast=autocast))
            assert network.dtype == torch.float32
            losses.append(network.loss(x, y).item())
        assert losses[0] != losses[1]
        assert losses[1] == pytest.approx(losses[0], abs=0.05)

    def test_double_is_double_all_the_way(self):
        x, y, _ = truth(300)
        networks = made(), made(dtype=torch.float32)
        for network in networks:
            train(network, (x, y), short())
        assert networks[0].dtype == torch.float64
        double, single = (network.loss(x, y).item() for network in networks)
        assert double != single
        assert double == pytest.approx(single, rel=1e-3)


def test_images_train_from_arrays():
    backbone = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
    network = MixtureNetwork(backbone, FullHead(4 * 16, 1, 2))
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(200, 1, 6, 6, dtype=torch.float64, generator=generator)
    y = images.mean((1, 2, 3))
    settings = short(epochs=10, learning_rate=0.01, warmup_steps=0, condition_noise=0.01)
    history = train(network, (images.numpy(), y.numpy()), settings)
    assert history.epochs[-1].train_nll < history.epochs[0].train_nll - 0.3


def test_shared_weights_can_be_kept(tmp_path):
    layer = torch.nn.Linear(2, 2)
    backbone = torch.nn.Sequential(layer, torch.nn.Tanh(), layer)
    network = MixtureNetwork(backbone, FullHead(2, 2, 2), condition_columns=2)
    history = train(network, bell(), short(), directory=tmp_path)
    assert history.stopped == "all epochs"


class TestBatches:
    def rows(self, count=23):
        x = torch.arange(count, dtype=torch.float64)
        network = made().prepare(x.unsqueeze(1), x.unsqueeze(1))
        return Batches(network, Rows.of(x, x)), network

    def conditions(self, batches, *arguments):
        return [batch.rows.condition.flatten().tolist() for batch in batches.shuffled(*arguments)]

    def test_an_epoch_has_every_row_once(self):
        batches, network = self.rows()
        found = self.conditions(batches, 0, 0, 0, 5)
        assert [len(batch) for batch in found] == [5, 5, 5, 5, 3]
        expected = network.standardise_condition(torch.arange(23.0).unsqueeze(1)).flatten()
        assert sorted(number for batch in found for number in batch) == expected.tolist()

    def test_weights_of_a_batch_have_mean_one_over_its_rows_on_average(self):
        """A row counts w/b, with w of mean one: the rate suits a batch of any size."""
        x, weights = torch.arange(23.0), 1 + torch.arange(23.0)
        _, network = self.rows()
        batches = Batches(network, Rows.of(x, x, weights))
        for size in (5, 23):
            found = list(batches.in_order(size))
            each = torch.cat([len(batch) * batch.weights for batch in found])
            assert_close(each, (weights / weights.mean()).double())

    def test_seed_and_epoch_decide_the_order(self):
        batches, _ = self.rows()
        orders = {
            (seed, epoch): str(self.conditions(batches, seed, epoch, 0, 5))
            for seed in range(3)
            for epoch in range(3)
        }
        assert len(set(orders.values())) == 9
        assert orders[1, 2] == str(self.conditions(batches, 1, 2, 0, 5))

    def test_an_epoch_can_be_entered_anywhere(self):
        batches, _ = self.rows()
        whole = self.conditions(batches, 4, 1, 0, 5)
        for start in range(6):
            assert self.conditions(batches, 4, 1, start, 5) == whole[start:]


class TestNoise:
    def draws(self, rows):
        draws = RowDraws([0])
        draws.begin(epoch=0, first=0, rows=rows)
        draws.choose(0)
        return draws

    def test_has_the_given_scale_and_keeps_gaps(self):
        rows = Rows(torch.zeros(20_000, 2), torch.zeros(20_000, 2))
        rows.target[::2, 0] = NAN
        noise = Noise(short(condition_noise=0.5, target_noise=0.2), 20_000, 4)
        noisy = noise.add(rows, self.draws(20_000))
        assert noisy.condition.std().item() == pytest.approx(0.5, rel=0.03)
        assert noisy.target[:, 1].std().item() == pytest.approx(0.2, rel=0.03)
        assert torch.equal(noisy.target.isnan(), rows.target.isnan())

    def test_none_by_zero_and_none_on_whole_numbers(self):
        rows = Rows(torch.zeros(5, 2, dtype=torch.long), torch.zeros(5, 2))
        noise = Noise(short(condition_noise=0.5, target_noise=0.0), 5, 4)
        noisy = noise.add(rows, self.draws(5))
        assert torch.equal(noisy.condition, rows.condition)
        assert noisy.target is rows.target

    def test_the_rule_falls_with_the_rows(self):
        few, many = (Noise(short(target_noise="rule"), n, 2).target for n in (100, 6400))
        # n^(−1/(4 + 2)): 64 times the rows, half the noise.
        assert few / many == pytest.approx(2)


class TestReports:
    def trained(self, **options):
        seen = []
        history = train(made(2, 2), bell(), short(), callbacks=seen.append, **options)
        return history, seen

    def test_the_callback_gets_every_epoch(self):
        history, seen = self.trained()
        assert [epoch.epoch for epoch in seen] == [0, 1]
        assert all(a is b for a, b in zip(seen, history.epochs, strict=True))

    def test_several_callbacks(self):
        one, two = [], []
        history = train(made(2, 2), bell(), short(), callbacks=[one.append, two.append])
        assert one == two == history.epochs

    @pytest.mark.parametrize("answer", [True, np.bool_(True)])
    def test_a_callback_that_returns_true_ends_the_run(self, answer, tmp_path):
        network, seen = made(2, 2), []
        stop = [seen.append, lambda epoch: answer if epoch.epoch == 1 else None]
        options = {"callbacks": stop, "directory": tmp_path}
        history = train(network, bell(), short(epochs=5), **options)
        assert history.stopped == "callback"
        assert len(history.epochs) == len(seen) == 2
        assert not network.training
        # It has ended: nothing is left to go on with.
        again = made(2, 2)
        assert train(again, bell(), short(epochs=5), **options) == history
        assert len(seen) == 2
        for ours, theirs in zip(again.parameters(), network.parameters(), strict=True):
            assert torch.equal(ours, theirs)

    @pytest.mark.parametrize("answer", [False, 1, "yes", [True], None])
    def test_other_answers_end_nothing(self, answer):
        history = train(made(2, 2), bell(), short(), callbacks=lambda _: answer)
        assert history.stopped == "all epochs"

    def test_a_callback_that_raises_leaves_the_best_weights(self):
        def stop(epoch):
            raise LookupError

        network = made(2, 2)
        with pytest.raises(LookupError):
            train(network, bell(), short(), callbacks=stop)
        assert not network.training
        other = made(2, 2)
        history = train(other, bell(), short(epochs=2))
        assert network.loss(*bell()).item() > other.loss(*bell()).item()
        assert len(history.epochs) == 2

    def test_the_numbers_of_an_epoch(self):
        history, _ = self.trained()
        for epoch in history.epochs:
            assert epoch.steps == 4
            assert epoch.seconds > 0
            assert 1 <= epoch.distinct_components <= epoch.used_components <= 2
            assert sum(epoch.usage) == pytest.approx(1)
            assert epoch.largest_condition_number >= 1

    def test_table_and_csv_are_flat(self):
        history, _ = self.trained()
        table = history.table()
        assert [line["epoch"] for line in table] == [0, 1]
        assert "usage" not in table[0]
        assert [table[1]["usage_0"], table[1]["usage_1"]] == history.epochs[1].usage
        read = list(csv.DictReader(io.StringIO(history.to_csv())))
        assert [{name: float(value) for name, value in line.items()} for line in read] == table
        assert History().table() == []
        assert History().to_csv().strip() == ""

    def test_history_goes_through_json(self):
        history, _ = self.trained()
        assert History.from_dict(json.loads(json.dumps(history.to_dict()))) == history

    def test_the_plot_is_of_a_figure_that_pyplot_knows(self, tmp_path):
        import matplotlib as mpl
        from matplotlib.figure import Figure

        mpl.use("agg")
        from matplotlib import pyplot as plt

        history, _ = self.trained()
        axes = history.plot()
        assert axes.figure is plt.gcf()
        plt.savefig(tmp_path / "saved.png")
        # The losses are on the picture: more colours than the white of an empty one.
        colours = np.unique(plt.imread(tmp_path / "saved.png").reshape(-1, 4), axis=0)
        assert len(colours) > 100
        plt.close(axes.figure)
        training, validation, best = axes.get_lines()
        assert list(training.get_ydata()) == [e.train_nll for e in history.epochs]
        assert list(validation.get_ydata()) == [e.validation_nll for e in history.epochs]
        assert best.get_xdata()[0] == history.best_epoch
        given = Figure().subplots()
        assert history.plot(given) is given

    def test_the_log_has_a_line_an_epoch(self, tmp_path):
        history, _ = self.trained(directory=tmp_path)
        lines = (tmp_path / "log.jsonl").read_text().splitlines()
        assert [Epoch(**json.loads(line)) for line in lines] == history.epochs


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestProgress:
    def test_on_a_terminal_one_line_is_written_over(self, monkeypatch):
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        history = train(made(2, 2), bell(), short(epochs=3))
        text = stream.getvalue()
        assert text.count("\n") == 1
        assert text.endswith("\n")
        lines = text.strip("\n").split("\r")
        assert [f"epoch {n}/3" in lines[n] for n in (1, 2, 3)] == 3 * [True]
        assert f"train {history.epochs[2].train_nll:.4g}" in lines[3]
        assert f"validation {history.epochs[2].validation_nll:.4g}" in lines[3]
        best = f"best validation {history.best_nll:.4g} in epoch {history.best_epoch + 1}"
        assert lines[4].strip() == best
        # A shorter line covers a longer one.
        assert len(lines[4]) >= len(lines[3].rstrip())

    def test_quiet_elsewhere(self, capfd):
        train(made(2, 2), bell(), short())
        assert capfd.readouterr() == ("", "")

    def test_as_told(self, monkeypatch, capfd):
        train(made(2, 2), bell(), short(), progress=True)
        assert "epoch 2/2" in capfd.readouterr().err
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        train(made(2, 2), bell(), short(), progress=False)
        assert stream.getvalue() == ""

    def test_time_left_counts_from_where_a_run_goes_on(self, monkeypatch):
        now = iter([0.0, 60.0, 3600.0])
        monkeypatch.setattr("condens.training.progress.time.monotonic", lambda: next(now))
        stream = io.StringIO()
        progress = Progress(10, stream)
        line = dict.fromkeys(Epoch.__dataclass_fields__, 0.0)
        progress.show(Epoch(**line | {"epoch": 7, "steps": 5, "seconds": 0.5}))
        # One of the last three epochs in a minute.
        assert "epoch 8/10" in stream.getvalue()
        assert "10 steps/s  2:00 left" in stream.getvalue()
        progress.show(Epoch(**line | {"epoch": 8}))
        assert "30:00 left" in stream.getvalue()


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("epochs", 0, "at least 1 was expected"),
            ("batch_size", 0, 'a whole number from 1, or "rule", was expected'),
            ("patience", 0, "at least 1 was expected"),
            ("learning_rate", 0.0, "a finite number above 0 was expected"),
            ("learning_rate", NAN, "a finite number above 0 was expected"),
            ("clip", -1.0, "a number above 0 was expected"),
            ("warmup_steps", -1, "at least 0 was expected"),
            ("weight_decay", -1.0, "a finite number from 0 was expected"),
            ("bound_epochs", -1, "at least 0 was expected"),
            ("entropy", NAN, "a finite number from 0 was expected"),
            ("average", 1.0, "a fraction from 0 to below 1 was expected"),
            ("validation_fraction", 1.0, "a fraction from 0 to below 1 was expected"),
            ("condition_noise", -0.1, 'a finite number from 0, or "rule", was expected'),
            ("target_noise", "some", 'a finite number from 0, or "rule", was expected'),
            ("schedule", "step", "one of ('cosine', 'plateau', 'constant') was expected"),
            ("bound", "tight", "one of (None, 'weighted', 'uniform', 'printed') was expected"),
            ("start", "random", "one of ('data', 'zero', 'keep') was expected"),
            ("epochs", 2.5, "a whole number was expected"),
            ("batch_size", "64", 'a whole number from 1, or "rule", was expected'),
            ("seed", 1.0, "a whole number was expected"),
            ("learning_rate", "fast", "a number was expected"),
        ],
    )
    def test_impossible_ones_are_named(self, name, value, expected):
        with pytest.raises(ArgumentError) as raised:
            Settings(**{name: value})
        fix = f"Leave it out for the default, {getattr(Settings(), name)!r}."
        assert str(raised.value) == f"{name} is {value!r}, but {expected}. {fix}"

    @pytest.mark.parametrize(
        ("name", "value"),
        [("batch_size", 0), ("batch_size", 2.5), ("batch_size", "64"), ("start", "random")],
    )
    def test_impossible_choices_are_named(self, name, value):
        with pytest.raises(ArgumentError) as raised:
            Settings(**{name: value})
        assert str(raised.value).startswith(f"{name} is {value!r}, but ")

    def test_go_through_json_and_unknown_ones_are_named(self):
        settings = Settings(epochs=7, target_noise="rule", bound="uniform")
        again = Settings.from_dict(json.loads(json.dumps(settings.to_dict())))
        assert again == settings
        with pytest.raises(ArgumentError, match=r"^epoch is no setting, but the settings are "):
            Settings.from_dict({"epoch": 3})

    def test_numbers_of_numpy_become_plain(self):
        settings = Settings(epochs=np.int64(7), learning_rate=np.float32(0.5))
        assert json.loads(json.dumps(settings.to_dict()))["epochs"] == 7
        assert type(settings.learning_rate) is float

    @pytest.mark.filterwarnings("ignore:All 2 components are alike")
    def test_start_zero_leaves_the_head_where_it_is(self):
        still = {"learning_rate": 1e-30, "weight_decay": 0.0, "epochs": 1}
        for start, moved in (("zero", False), ("data", True)):
            network = made(2, 2)
            before = network.head.linear.bias.detach().clone()
            train(network, bell(), short(start=start, **still))
            assert torch.equal(network.head.linear.bias, before) != moved


@pytest.mark.parametrize("data", [torch.zeros(5, 2), (torch.zeros(5, 2),), 3, (1, 2, 3, 4)])
def test_data_that_are_no_rows_are_named(data):
    with pytest.raises(ArgumentError) as raised:
        train(made(2, 2), data)
    assert str(raised.value) == (
        f"data is a {type(data).__name__}, but (condition, target) or (condition, target, weights) "
        "was expected. Pass these."
    )


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 32), (1600, 32), (3199, 32), (3200, 64), (12_799, 128), (10**6, 512)]
)
def test_the_batch_size_follows_the_rows(rows, size):
    assert batch_size(Settings(), rows) == size
    assert batch_size(Settings(batch_size=7), rows) == 7
