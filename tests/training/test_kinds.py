"""Members of the kind that validation rows prefer."""

import math
import signal
import threading
from dataclasses import replace

import pytest
import torch

from condens.data import Rows
from condens.nn import Ensemble, MixtureNetwork, PiecewiseLinear
from condens.training import Settings, selection, train
from condens.training.selection import (
    MAX_DIFFERENCE,
    Losses,
    Variant,
    _difference,
    _fold_losses,
    _parts,
    _unneeded,
    choose_kind,
    train_alone,
    train_members,
)

ROWS = 300
FOLDS = torch.arange(ROWS) % 4


def rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(ROWS, 2, generator=generator)
    y = (x[:, :1] > 0.4).float() + 0.05 * torch.randn(ROWS, 1, generator=generator)
    return x, y


def kind(bins, made=None):
    """Return what makes networks with these bins; the numbers asked for go to `made`."""
    generator = torch.Generator().manual_seed(bins)

    def make(count):
        if made is not None:
            made.append((bins, count))
        return [
            MixtureNetwork.of(2, 1, n_components=2, width=16, bins=bins, generator=generator)
            for _ in range(count)
        ]

    return make


def others(*kinds, errors=0.0):
    """Return variants that are these kinds, whatever is best so far."""
    return [Variant(lambda _, kind=kind: kind, errors) for kind in kinds]


def fit(kinds, n_members=3, epochs=15, **options):
    settings = Settings(epochs=epochs, batch_size=32, validation_fraction=0.1)
    first, *more = kinds
    options = {"n_members": n_members, "variants": others(*more), **options}
    return train_members(first, rows(), settings, **options)


def bins_of(ensemble):
    found = [m.bins for m in ensemble.modules() if isinstance(m, PiecewiseLinear)]
    assert len(found) in (0, len(ensemble.members))
    return found[0] if found else 0


def test_all_members_are_of_the_better_kind():
    made = []
    ensemble, history = fit([kind(0, made), kind(12, made)], n_members=4, epochs=60)
    assert made == [(0, 3), (12, 3), (12, 4)]
    assert bins_of(ensemble) == 12
    assert len(ensemble.members) == len(history.member_nlls) == len(history.member_epochs) == 4
    assert history.best_nll == pytest.approx(sum(history.member_nlls) / 4)


@pytest.mark.parametrize(("whole", "trial"), [(10, 3), (80, 20), (120, 25), (400, 60)])
def test_trials_are_short_and_all_members_are_trained_to_the_end(whole, trial):
    epochs = []
    settings = Settings(epochs=whole, batch_size=ROWS, learning_rate=1e-9, patience=1000)
    train_members(
        kind(0),
        rows(),
        settings,
        n_members=4,
        variants=others(kind(4)),
        callbacks=lambda e: epochs.append(e.epoch),
    )
    assert epochs == [*range(trial), *range(trial), *range(whole)]


@pytest.mark.parametrize(("fraction", "validated"), [(0.05, 0.1), (0.1, 0.2), (0.2, 0.25)])
def test_members_of_a_trial_validate_on_more_rows(fraction, validated):
    settings = Settings(epochs=1, batch_size=32, validation_fraction=fraction)
    options = {"n_members": 5, "variants": others(kind(4))}
    trial = choose_kind(kind(0), rows(), settings, **options).history
    _, history = train_members(kind(0), rows(), settings, **options)
    assert trial.validation_rows == round(validated * ROWS)
    assert history.validation_rows == round(fraction * ROWS)


@pytest.mark.parametrize("n_members", [2, 3, 4])
def test_the_ensemble_is_the_average_of_its_members(n_members):
    ensemble, _ = fit([kind(0), kind(4)], n_members=n_members, epochs=2)
    x, y = rows()
    each = torch.stack([member(x).log_prob(y) for member in ensemble.members])
    average = each.double().logsumexp(0) - math.log(n_members)
    torch.testing.assert_close(ensemble(x).log_prob(y).double(), average, rtol=1e-4, atol=1e-4)


def test_one_kind_is_trained_at_once():
    made = []
    ensemble, _ = fit([kind(0, made)], n_members=4, epochs=2)
    assert made == [(0, 4)]
    assert len(ensemble.members) == 4


def test_without_validation_rows_there_is_nothing_to_choose_by():
    made = []
    settings = Settings(epochs=1, validation_fraction=0)
    train_members(kind(0, made), rows(), settings, n_members=3, variants=others(kind(4, made)))
    assert made == [(0, 3)]


def test_members_have_folds_of_their_own_and_the_scales_of_all_rows():
    """A member whose fold is rubbish has not learned it; trials see folds 0 to 2."""
    x, y = rows()
    folds = torch.arange(ROWS) % 5
    y[folds == 3] = 4.0
    settings = Settings(epochs=10, batch_size=32)
    options = {"n_members": 5, "folds": folds, "variants": others(kind(4))}
    ensemble, history = train_members(kind(0), (x, y), settings, **options)
    assert max(range(5), key=history.member_nlls.__getitem__) == 3
    assert ensemble.target_scaling.location.item() == pytest.approx(y.double().mean().item())
    for member in ensemble.members:
        assert torch.equal(member.target_scaling.scale, ensemble.target_scaling.scale)
    assert ensemble(x).n_components == 10
    torch.testing.assert_close(ensemble.nll(x, y), -ensemble(x).log_prob(y), rtol=1e-4, atol=1e-4)


def test_the_same_again_and_from_a_directory(tmp_path):
    states = [
        fit([kind(0), kind(4)], epochs=3, directory=place)[0].state_dict()
        for place in (None, tmp_path, tmp_path)
    ]
    for name, tensor in states[0].items():
        assert all(torch.equal(tensor, other[name]) for other in states[1:]), name


def test_a_callback_ends_it_with_the_members_so_far():
    made = []
    ensemble, history = fit([kind(0, made), kind(4, made)], callbacks=lambda _: True)
    assert made == [(0, 3)]
    assert (len(ensemble.members), history.stopped) == (3, "callback")


def linear(seed=0, targets=6):
    """Rows of many noisy targets, which a network learns by heart before it learns the slope."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(200, 2, generator=generator)
    return x, x[:, :1] + torch.randn(200, targets, generator=generator)


def straight(made=None, shortcut=True, targets=6):
    """Return what makes networks with or without a shortcut."""
    generator = torch.Generator().manual_seed(3)

    def make(count):
        if made is not None:
            made.append((shortcut, count))
        return [
            MixtureNetwork.of(
                2, targets, n_components=2, width=64, shortcut=shortcut, generator=generator
            )
            for _ in range(count)
        ]

    return make


def test_variants_of_the_best_kind_are_compared_too():
    made, asked = [], []

    def change(best):
        asked.append(best)
        return straight(made) if best is plain else None

    settings = Settings(epochs=30, batch_size=32, validation_fraction=0.1)
    plain = straight(made, shortcut=False)
    variants = [Variant(change)] * 2
    ensemble, history = train_members(plain, linear(), settings, n_members=5, variants=variants)
    assert made == [(False, 3), (True, 3), (True, 5)]
    assert [best is plain for best in asked] == [True, False]
    assert all(member.backbone.shortcut for member in ensemble.members)
    assert len(history.member_nlls) == 5


@pytest.mark.parametrize(("errors", "bins"), [(0.0, 12), (1e6, 0)])
def test_a_variant_may_have_to_be_clearly_better(errors, bins):
    ensemble, _ = fit([kind(0)], epochs=60, variants=others(kind(12), errors=errors))
    assert bins_of(ensemble) == bins


@pytest.mark.parametrize(
    ("epochs", "patience", "expected"),
    [
        (800, 96, (120, 40)),  # a third of 15 %
        (60, 8, (15, 5)),  # a third of a quarter
        (60, 60, (15, 15)),  # a run without patience has trials without
    ],
)
def test_trials_are_shorter_and_more_patient(monkeypatch, epochs, patience, expected):
    """At a high rate members are worse than their start at first: they need the time."""
    seen = []

    def spy(network, data, settings, **options):
        seen.append((settings.epochs, settings.patience))
        return train(network, data, replace(settings, epochs=1), **options)

    monkeypatch.setattr(selection, "train", spy)
    settings = Settings(epochs=epochs, patience=patience, validation_fraction=0.1)
    train_members(kind(0), rows(), settings, n_members=2, variants=others(kind(3)))
    assert seen == [expected, expected, (epochs, patience)]


class TestColumns:
    """Twelve columns, of which the first two matter."""

    SETTINGS = Settings(epochs=120, batch_size=32, learning_rate=0.01, validation_fraction=0.1)

    def rows(self, count=400):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(count, 12, generator=generator)
        noise = 0.1 * torch.randn(count, 1, generator=generator)
        return x, torch.sin(2 * x[:, :2]).sum(1, keepdim=True) + noise

    def kind(self, bins=0, made=None, shortcut=False):
        generator = torch.Generator().manual_seed(bins)

        def make(count, unused=()):
            if made is not None:
                made.append((bins, shortcut, len(unused)))
            options = {"bins": bins, "shortcut": shortcut, "generator": generator}
            return [
                MixtureNetwork.of(12, 1, n_components=1, width=32, unused=unused, **options)
                for _ in range(count)
            ]

        return make

    def test_those_that_are_not_needed_are_left_out_by_all_kinds(self):
        made, (x, y) = [], self.rows()
        ensemble, _ = train_members(
            self.kind(0, made),
            (x, y),
            self.SETTINGS,
            n_members=4,
            select_columns=True,
            variants=others(self.kind(4, made), self.kind(0, made, shortcut=True)),
        )
        left = len(ensemble.unused)
        assert not {0, 1} & set(ensemble.unused)
        assert left >= 8
        assert [part[2] for part in made] == [0, left, left, left, left]
        for network in (ensemble, *ensemble.members):
            assert network.unused == ensemble.unused
        changed = x.clone()
        changed[:, list(ensemble.unused)] = 1e6
        assert torch.equal(ensemble(x).means, ensemble(changed).means)
        assert (ensemble(x).mean - y).square().mean() < 0.2

    @pytest.mark.slow
    def test_where_most_are_needed_none_is_tried(self):
        x, noise = self.rows()
        y, made = x[:, :9].sum(1, keepdim=True) + 0.1 * noise, []
        options = {"n_members": 3, "select_columns": True}
        ensemble, _ = train_members(self.kind(0, made), (x, y), self.SETTINGS, **options)
        assert ensemble.unused == ()
        assert [part[2] for part in made] == [0, 0]

    def test_what_is_no_better_is_not_taken(self):
        """Twelve weak columns: hardly one is missed alone, but the network needs them all."""
        generator = torch.Generator().manual_seed(2)
        x = torch.randn(400, 12, generator=generator)
        y = 0.2 * x.sum(1, keepdim=True) + torch.randn(400, 1, generator=generator)
        made = []
        options = {"n_members": 3, "select_columns": True}
        settings = replace(self.SETTINGS, epochs=40, learning_rate=0.003)
        ensemble, _ = train_members(self.kind(0, made), (x, y), settings, **options)
        assert [part[2] > 0 for part in made] == [False, True, False]
        assert ensemble.unused == ()

    def test_weights_count(self):
        """Column 1 matters in rows without weight alone."""
        x, y = self.rows(600)
        first = torch.arange(600) % 2 == 0
        y = torch.where(first[:, None], torch.sin(2 * x[:, :1]), y)
        ensemble = Ensemble(self.kind()(2))
        folds = torch.arange(600) // 2 % 4
        weights = torch.where(first, 1.0, 1e-9)
        train(ensemble, (x, y), self.SETTINGS, folds=folds)
        parts = [
            _parts(ensemble, Rows.of(x, y, given), None, folds)
            for given in (torch.ones(600), weights)
        ]
        plain, weighted = (_unneeded(ensemble, part, 0) for part in parts)
        assert 1 not in plain
        assert 1 in weighted
        assert 0 not in weighted

    @pytest.mark.slow
    def test_the_same_again_and_from_a_directory(self, tmp_path):
        options = {"n_members": 3, "select_columns": True}
        states = [
            train_members(
                self.kind(0),
                self.rows(),
                self.SETTINGS,
                directory=place,
                variants=others(self.kind(4)),
                **options,
            )[0]
            for place in (None, tmp_path, tmp_path)
        ]
        assert states[0].unused
        for name, tensor in states[0].state_dict().items():
            assert all(torch.equal(tensor, other.state_dict()[name]) for other in states[1:]), name

    def test_a_callback_in_the_trial_without_them_ends_it(self):
        made = []
        ensemble, history = train_members(
            self.kind(0, made),
            self.rows(),
            self.SETTINGS,
            n_members=3,
            variants=others(self.kind(4, made)),
            select_columns=True,
            callbacks=lambda _: len(made) > 1,
        )
        assert len(made) == 2
        assert (len(ensemble.members), history.stopped) == (3, "callback")


class TestAlone:
    SETTINGS = Settings(epochs=20, batch_size=32)

    @pytest.mark.slow
    def test_a_variant_that_ends_worse_is_left(self):
        """The one that is looked at knows the rows; the one that is trained is too simple."""
        x, y = rows()
        both = torch.cat([x, x]), torch.cat([y, -y])
        trained = straight(targets=1)(1)
        train(trained[0], both, Settings(epochs=30, batch_size=32), warn=False)
        variants = iter([trained, [MixtureNetwork.of(2, 1, n_components=1, width=4)]])
        plain = straight(shortcut=False, targets=1)(1)
        network, _ = train_alone(
            lambda _: plain,
            both,
            Settings(epochs=8, batch_size=32, start="keep"),
            variant=lambda _: next(variants),
        )
        assert next(variants, None) is None
        assert network is plain[0]

    def test_a_variant_that_begins_better_is_trained(self):
        made, numbers = [], []
        options = {"variant": straight(made), "callbacks": lambda e: numbers.append(e.epoch)}
        network, history = train_alone(
            straight(made, shortcut=False), linear(), self.SETTINGS, **options
        )
        assert made == [(False, 1), (True, 1), (True, 1)]
        assert network.backbone.shortcut == 2
        # Those of both runs, not the epoch that was only a look.
        assert numbers.count(0) == 2
        assert numbers[-len(history.epochs) :] == [epoch.epoch for epoch in history.epochs]
        x, y = linear(1)
        plain = train_alone(straight(shortcut=False), linear(), self.SETTINGS)[0]
        assert network.loss(x, y) < plain.loss(x, y) - 0.1

    def test_the_same_again_and_from_a_directory(self, tmp_path):
        states = [
            train_alone(
                straight(shortcut=False),
                linear(),
                self.SETTINGS,
                variant=straight(),
                directory=place,
            )[0].state_dict()
            for place in (None, tmp_path, tmp_path)
        ]
        for name, tensor in states[0].items():
            assert all(torch.equal(tensor, other[name]) for other in states[1:]), name

    def test_what_a_network_learns_by_itself_is_enough(self):
        made = []
        x, y = rows()
        network, _ = train_alone(
            straight(made, shortcut=False, targets=1),
            (x, y),
            Settings(epochs=40, batch_size=32),
            variant=straight(made, targets=1),
        )
        assert made == [(False, 1), (True, 1)]
        assert network.backbone.shortcut == 0

    def test_a_callback_ends_it(self):
        made = []
        train_alone(
            straight(made, shortcut=False),
            linear(),
            self.SETTINGS,
            variant=straight(made),
            callbacks=lambda _: True,
        )
        assert made == [(False, 1)]


def test_an_interruption_ends_it_with_the_members_so_far():
    def interrupt(epoch):
        if epoch.epoch == 1:
            signal.raise_signal(signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    made = []
    ensemble, history = fit([kind(0, made), kind(4, made)], callbacks=interrupt)
    assert made == [(0, 3)]
    assert (len(ensemble.members), history.stopped) == (3, "interrupted")


def test_no_single_row_decides():
    """By hand: of 40 rows one is better by 50 nats, and all others are worse by 0.2."""
    others = torch.zeros(40, dtype=torch.float64)
    losses = others + 0.2
    losses[7] = -50.0
    weights = torch.ones_like(others)
    first, second = Losses(losses, weights), Losses(others, weights)
    mean, error = _difference(first, second, MAX_DIFFERENCE)
    assert mean == pytest.approx((39 * 0.2 - 1) / 40)
    assert error == pytest.approx(1.2 / 40, rel=1e-6)
    assert _difference(first, second)[0] < -1


def test_a_weight_counts_as_so_many_rows():
    generator = torch.Generator().manual_seed(0)
    losses, others = torch.randn(2, 50, dtype=torch.float64, generator=generator)
    times = torch.randint(1, 4, (50,), generator=generator)
    one = torch.ones(int(times.sum()), dtype=torch.float64)
    repeated = [Losses(each.repeat_interleave(times), one) for each in (losses, others)]
    weighted = [Losses(each, times.double()) for each in (losses, others)]
    assert _difference(*weighted, 0.5)[0] == pytest.approx(_difference(*repeated, 0.5)[0])


def test_validation_rows_keep_their_weights():
    x, y = rows()
    weights = 0.5 + x[:, 1]
    ensemble = Ensemble(kind(0)(2)).prepare(x, y)
    found = _fold_losses(ensemble, _parts(ensemble, Rows.of(x, y, weights), None, FOLDS))
    expected = torch.cat([weights[FOLDS == 0], weights[FOLDS == 1]])
    assert torch.equal(found.weights, expected.double())


@pytest.mark.parametrize("common", [False, True])
def test_losses_are_of_the_rows_that_members_validate_on(common):
    x, y = rows()
    ensemble = Ensemble(kind(0)(2)).prepare(x, y)
    given = Rows.of(x, y)
    parts = _parts(ensemble, given, given if common else None, None if common else FOLDS)
    found = _fold_losses(ensemble, parts)
    first = ensemble.standardise_condition(x)
    each = [
        member.standard_nll(first, ensemble.standardise_target(y)) for member in ensemble.members
    ]
    expected = (
        torch.stack(each).mean(0)
        if common
        else torch.cat([each[0][FOLDS == 0], each[1][FOLDS == 1]])
    )
    torch.testing.assert_close(found.nll, expected.double())
