"""Ensembles: every member is trained as it would be alone."""

import copy
import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch
from helpers import runs
from torch import Generator, nn
from torch.testing import assert_close

from condens.data import Rows
from condens.errors import ArgumentError, RunDirectoryError, TrainingError
from condens.kernels import native
from condens.nn import HEADS, Ensemble, FullHead, MixtureNetwork
from condens.nn.randomness import RowDraws
from condens.nn.stack import Stack
from condens.training import Settings, train
from condens.training.batches import Batches, member_seed, random_folds
from condens.training.loop import _Loop
from condens.training.members import Members
from condens.training.state import State
from condens.transforms import Integer

NAN = float("nan")
MEMBERS, ROWS = 3, 60


def settings(**changes):
    return Settings(
        **{
            "epochs": 5,
            "batch_size": 16,
            "clip": 0.5,
            "warmup_steps": 3,
            "start": "keep",
            "seed": 4,
        }
        | changes
    )


def data(*, codes=False, gaps=False, weights=False, whole=False):
    generator = Generator().manual_seed(2)
    x = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    y = x[:, :2] + 0.3 * torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    if codes:
        x[:, 2] = torch.randint(4, (ROWS,), generator=generator)
    if whole:
        y[:, 1] = y[:, 1].round()
    if gaps:
        y[::4, 0] = NAN
    return (x, y, 0.1 + torch.rand(ROWS, generator=generator).double()) if weights else (x, y)


def network(seed=0, **options):
    options = {"n_components": 2, "width": 6, "depth": 3, **options}
    return MixtureNetwork.of(3, 2, generator=Generator().manual_seed(seed), **options).double()


class Bent(nn.Module):
    """A backbone that is computed one by one."""

    features = 6

    def __init__(self, seed):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.linear = nn.Linear(3, 6)

    def forward(self, x):
        return self.linear(x).tanh()


def ensemble(make=network, given=None, **options):
    made = Ensemble([make(seed, **options) for seed in range(MEMBERS)])
    return made.prepare(*(given or data())[:2])


def bent(seed):
    return MixtureNetwork(Bent(seed), FullHead(6, 2, 2), condition_columns=3).double()


def weights_of(trained):
    return [p.detach() for p in trained.parameters()]


FOLDS = random_folds(ROWS, 0.2, seed=1)[0]
# Some members stall long before others.
PATIENCE = {"epochs": 12, "patience": 2, "learning_rate": 0.1}
CASES = {
    **{covariance: ({}, {"covariance": covariance}, {}) for covariance in HEADS},
    **{f"{c} with gaps": ({"gaps": True}, {"covariance": c}, {}) for c in HEADS},
    "weights": ({"weights": True}, {}, {}),
    "weights and gaps": ({"weights": True, "gaps": True}, {}, {}),
    "categories": ({"codes": True}, {"categories": [4], "normalise": True}, {}),
    "bins": ({}, {"bins": 3}, {}),
    "categories and bins": ({"codes": True}, {"categories": [4], "bins": 3}, {}),
    "a shortcut": ({}, {"shortcut": True}, {}),
    "categories, bins and a shortcut": (
        {"codes": True},
        {"categories": [4], "bins": 3, "shortcut": True},
        {},
    ),
    "whole numbers": ({"whole": True}, {"transforms": [Integer(), Integer()]}, {}),
    "no average": ({}, {}, {"average": 0.0}),
    "constant rate": ({}, {}, {"schedule": "constant", "weight_decay": 0.1}),
    "a bound": ({}, {}, {"bound": "uniform"}),
    "entropy": ({"gaps": True}, {}, {"entropy": 0.1}),
    "own backbones": ({}, {"make": bent}, {}),
    "patience": ({}, {}, PATIENCE),
    "patience, weights and gaps": ({"weights": True, "gaps": True}, {}, PATIENCE),
    "patience, dropout and noise": (
        {},
        {"dropout": 0.2},
        PATIENCE | {"condition_noise": 0.1, "target_noise": 0.1},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_members_train_as_they_would_alone(case, monkeypatch):
    """On their own rows, in their own order, with their own clip and best weights."""
    kind, options, changes = CASES[case]
    given, chosen = data(**kind), settings(**changes)
    if case == "whole numbers":
        given = (given[0], given[1].round())
    together = ensemble(given=given, **options)
    alone = copy.deepcopy(together).members
    history = train(together, given, chosen, folds=FOLDS)
    monkeypatch.setenv("CONDENS_KERNEL", "eager")
    records = [
        train(
            one,
            given,
            replace(chosen, seed=member_seed(chosen.seed, m)),
            folds=torch.where(m == FOLDS, 0, -1),
        )
        for m, one in enumerate(alone)
    ]
    for ours, one in zip(together.members, alone, strict=True):
        assert_close(weights_of(ours), weights_of(one), rtol=1e-9, atol=1e-11)
    assert history.member_epochs == [record.best_epoch for record in records]
    assert max(history.member_epochs) == history.best_epoch > -1
    best = [record.best_nll for record in records]
    assert history.member_nlls == pytest.approx(best, rel=1e-9)
    assert history.best_nll == pytest.approx(sum(best) / MEMBERS, rel=1e-9)
    assert (history.rows, history.validation_rows) == (records[0].rows, records[0].validation_rows)
    for number, epoch in enumerate(history.epochs):
        left = [record.epochs[number] for record in records if number < len(record.epochs)]
        # Components are looked at every few epochs, which those of a shorter run are not.
        known = ("used_components", "unexplained_fraction") if len(left) == MEMBERS else ()
        for name in ("train_nll", *known):
            each = [getattr(one, name) for one in left]
            assert getattr(epoch, name) == pytest.approx(sum(each) / len(left), rel=1e-9)
        stalled = [record.best_nll for record in records if number >= len(record.epochs)]
        losses = [one.validation_nll for one in left] + stalled
        assert epoch.validation_nll == pytest.approx(sum(losses) / MEMBERS, rel=1e-9)
    assert len(history.epochs) == max(len(record.epochs) for record in records)
    if "patience" in case:
        assert len({len(record.epochs) for record in records}) > 1  # some stall before others
        ended = max(len(record.epochs) for record in records) < chosen.epochs
        assert history.stopped == ("no better validation loss" if ended else "all epochs")


LONE = ("full", "diagonal", "weights", "bins", "categories and bins", "a shortcut", "no average")


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
@pytest.mark.parametrize("case", LONE)
def test_a_network_alone_trains_natively_as_by_autograd(case, monkeypatch):
    kind, options, changes = CASES[case]
    given, chosen = data(**kind), settings(**changes)
    ours = network(**options).prepare(*given[:2])
    theirs, whole, native_steps = copy.deepcopy(ours), Members.native.fget, []

    def seen(members):
        native_steps.append(whole(members))
        return native_steps[-1]

    monkeypatch.setattr(Members, "native", property(seen))
    history = train(ours, given, chosen, warn=False)
    assert native_steps
    assert all(native_steps)
    monkeypatch.setenv("CONDENS_KERNEL", "eager")
    other = train(theirs, given, chosen, warn=False)
    assert not native_steps[-1]
    assert_close(weights_of(ours), weights_of(theirs), rtol=1e-9, atol=1e-11)
    assert history.best_nll == pytest.approx(other.best_nll, rel=1e-9)
    # Of every step, also where none beats the start.
    ours_of, theirs_of = ([one.train_nll for one in record.epochs] for record in (history, other))
    assert ours_of == pytest.approx(theirs_of, rel=1e-9)
    assert len(set(ours_of)) == chosen.epochs
    # Its parameters are its own again.
    assert all(p.is_contiguous() for p in ours.parameters())


AT_ONCE = {
    **{name: CASES[name] for name in ("full", "diagonal", "weights", "bins", "a shortcut")},
    **{name: CASES[name] for name in ("no average", "constant rate", "patience")},
    "dropout": ({"weights": True}, {"dropout": 0.3}, PATIENCE),
    "whole numbers": CASES["whole numbers"],
    "plateau": ({}, {}, {"schedule": "plateau", "epochs": 30, "patience": 3}),
}


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", AT_ONCE)
def test_steps_in_one_call_have_the_bits_of_single_ones(case, dtype, monkeypatch):
    kind, options, changes = AT_ONCE[case]
    given = tuple(t.to(dtype) for t in data(**kind))
    if case == "whole numbers":
        given = (given[0], given[1].round())
    taken, whole = [], State.several_steps

    def several(*arguments):
        found = whole(*arguments)
        taken.append(len(found))
        return found

    monkeypatch.setattr(State, "several_steps", several)
    ours = ensemble(given=given, **options).to(dtype)
    theirs = copy.deepcopy(ours)
    history = train(ours, given, settings(**changes), folds=FOLDS)
    assert sum(taken) == sum(epoch.steps for epoch in history.epochs)
    assert max(taken) == 3  # an epoch's
    monkeypatch.setattr(_Loop, "_several_steps", lambda *_: 0)
    other = train(theirs, given, settings(**changes), folds=FOLDS)
    assert_close(weights_of(ours), weights_of(theirs), rtol=0, atol=0)
    for one, alone in zip(history.epochs, other.epochs, strict=True):
        assert (one.train_nll, one.validation_nll) == (alone.train_nll, alone.validation_nll)


def test_dropout_that_a_callback_changes(monkeypatch):
    def weights():
        together = ensemble(dropout=0.5)

        def lower(epoch):
            for module in together.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.5 / (epoch.epoch + 2)

        train(together, data(), settings(), folds=FOLDS, callbacks=lower)
        return weights_of(together)

    ours = weights()
    monkeypatch.setattr(_Loop, "_several_steps", lambda *_: 0)
    assert_close(ours, weights(), rtol=0, atol=0)


UNUSUAL = {
    "a row a step": ({}, {"batch_size": 1, "epochs": 1}),
    "more parameters than the kernel takes": ({"depth": 130}, {"epochs": 2}),
    "a decay beyond all use": ({}, {"epochs": 2, "weight_decay": 1e31}),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_runs_end_as_without_the_kernel(case, monkeypatch):
    options, changes = UNUSUAL[case]

    def stopped():
        return train(ensemble(**options), data(), settings(**changes), warn=False).stopped

    ours = stopped()
    monkeypatch.setenv("CONDENS_KERNEL", "eager")
    assert ours == stopped() == "all epochs"


def test_more_members_than_the_kernel_takes():
    many = [MixtureNetwork.of(3, 2, n_components=1, width=1, depth=1) for _ in range(1025)]
    together = Ensemble(many).double().prepare(*data())
    assert train(together, data(), settings(epochs=1), warn=False).stopped == "all epochs"


def test_losses_whose_sum_is_infinite_are_skipped_steps(monkeypatch):
    def bent(seed):
        made = network(seed)
        with torch.no_grad():
            made.head.linear.weight.zero_()
            made.head.linear.bias.zero_()[2:6] = 1.3e154
        return made

    def skipped():
        together = Ensemble([bent(seed) for seed in range(5)])
        history = train(together, data(), settings(epochs=2, clip=1e300), warn=False)
        assert history.stopped == "all epochs"
        return [epoch.skipped_steps for epoch in history.epochs]

    ours = skipped()
    monkeypatch.setattr(_Loop, "_several_steps", lambda *_: 0)
    assert ours == skipped() == [4, 4]  # all of them


def test_backbones_without_layers():
    together = Ensemble([network(seed, width=3, depth=1) for seed in range(2)])
    for one in together.members:
        one.backbone.layers = nn.Sequential()
    assert train(together, data(), settings(epochs=1), warn=False).stopped == "all epochs"


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
def test_a_step_that_is_skipped_among_others(monkeypatch):
    """The others of its call are taken as they would be alone."""
    x, y = data()
    y[17] = 1e200  # its square is infinite
    options = {"clip": 1.0, "validation_fraction": 0.0, "start": "keep"}
    ours = ensemble()
    theirs = copy.deepcopy(ours)
    history = train(ours, (x, y), settings(**options), warn=False)
    monkeypatch.setattr(_Loop, "_several_steps", lambda *_: 0)
    other = train(theirs, (x, y), settings(**options), warn=False)
    skipped = [epoch.skipped_steps for epoch in history.epochs]
    assert skipped == [epoch.skipped_steps for epoch in other.epochs]
    assert 0 < min(skipped) <= max(skipped) < history.epochs[0].steps == 4
    assert_close(weights_of(ours), weights_of(theirs), rtol=0, atol=0)


@pytest.fixture
def computed(monkeypatch):
    """The number of members in every step."""
    found, whole, several = [], Stack.backward, State.several_steps

    def backward(self, condition, *given, **options):
        found.append(len(condition))
        return whole(self, condition, *given, **options)

    def several_steps(self, batches, *given):
        taken = several(self, batches, *given)
        found.extend(len(batch.rows.condition) for batch in batches[: len(taken or ())])
        return taken

    monkeypatch.setattr(Stack, "backward", backward)
    monkeypatch.setattr(State, "several_steps", several_steps)
    return found


def test_members_that_have_stalled_are_not_computed(computed):
    """Which the shapes tell; that the others learn the same, the case «patience» above."""
    history = train(ensemble(), data(), settings(**PATIENCE), folds=FOLDS)
    steps, ends = history.epochs[0].steps, [epoch + 3 for epoch in history.member_epochs]
    assert computed == [
        sum(number < end for end in ends)
        for number in range(len(history.epochs))
        for _ in range(steps)
    ]
    assert computed[-1] < computed[0] == MEMBERS


def test_usage_is_that_of_all_members(monkeypatch):
    """Of one that has stopped the last one, in its place: the sum over all stays one."""
    train_options = {"folds": FOLDS, "warn": False}
    history = train(ensemble(), data(), settings(**PATIENCE), **train_options)
    monkeypatch.setattr(State, "keep_learning", lambda *_: None)
    whole = train(ensemble(), data(), settings(**PATIENCE), **train_options)
    ends = [epoch + 3 for epoch in history.member_epochs]
    assert min(ends) < len(history.epochs) == len(whole.epochs)
    for number, (ours, theirs) in enumerate(zip(history.epochs, whole.epochs, strict=True)):
        assert sum(ours.usage) == pytest.approx(1)
        for member, end in enumerate(ends):
            own = slice(2 * member, 2 * member + 2)
            if number < end:
                assert ours.usage[own] == pytest.approx(theirs.usage[own], rel=1e-9)
            else:
                assert ours.usage[own] == pytest.approx(history.epochs[number - 1].usage[own])
    assert all(part.has_data() for part in history.plot_diagnostics().axes)


def test_a_failure_names_a_member_that_learns(monkeypatch):
    """A dropped one may have the largest weights; where nothing has a gradient, these are named."""
    together, learning, keep, whole = ensemble(), [], State.keep_learning, Stack.backward

    def dropping(self, left):
        keep(self, left)
        learning.append(left)
        for member in {0, 1, 2} - set(left):
            together.members[member].head.linear.bias.data.fill_(1e6)

    def backward(*given, **options):
        if learning:
            raise torch.linalg.LinAlgError("no")
        return whole(*given, **options)

    monkeypatch.setattr(State, "keep_learning", dropping)
    monkeypatch.setattr(Stack, "backward", backward)
    monkeypatch.setattr(_Loop, "_several_steps", lambda *_: 0)
    with pytest.raises(TrainingError, match=r"The worst parameter is networks\.") as caught:
        train(together, data(), settings(**PATIENCE | {"batch_size": 1}), folds=FOLDS)
    assert int(str(caught.value).partition("networks.")[2][0]) in learning[-1]


@pytest.mark.parametrize("learning", [[], [0], [2], [0, 1], [1, 1], [7], [0, 1, 2]], ids=str)
def test_a_state_whose_members_do_not_fit_is_refused(tmp_path, learning):
    class StoppedError(Exception):
        pass

    def stop(epoch):
        if epoch.epoch == 4:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(
            ensemble(),
            data(),
            settings(**PATIENCE),
            folds=FOLDS,
            directory=tmp_path,
            callbacks=stop,
            checkpoint_seconds=0.0,
        )
    last = max(tmp_path.glob("state-*.json"))
    written = json.loads(last.read_text())
    position = written["values"]["position"]
    assert position["learning"] == [1]
    position["learning"] = learning
    content = last.with_suffix(".safetensors").read_bytes()
    digest = hashlib.sha256(content + json.dumps(written["values"]).encode()).hexdigest()
    last.write_text(json.dumps(written | {"sha256": digest}))
    for other in tmp_path.glob("state-*.json"):
        if other != last:
            other.unlink()
    with pytest.raises(RunDirectoryError, match="holds a state that cannot be read"):
        train(ensemble(), data(), settings(**PATIENCE), folds=FOLDS, directory=tmp_path)


def test_a_run_goes_on_with_those_that_learn(tmp_path):
    """Stopped after every epoch in turn: the same bytes, and all members in the end."""

    class StoppedError(Exception):
        pass

    changes = PATIENCE | {"condition_noise": 0.1}
    whole = ensemble(dropout=0.2)
    records = [train(whole, data(), settings(**changes), folds=FOLDS)]
    cut, stops = ensemble(dropout=0.2), 0

    def stop(_):
        raise StoppedError

    while True:
        try:
            history = train(
                cut,
                data(),
                settings(**changes),
                folds=FOLDS,
                directory=tmp_path,
                checkpoint_seconds=0.0,
                callbacks=stop,
            )
            break
        except StoppedError:
            stops += 1
            cut = ensemble(dropout=0.2)
    assert stops == len(history.epochs) == len(records[0].epochs)
    assert all(map(torch.equal, weights_of(cut), weights_of(whole)))
    assert history.member_nlls == records[0].member_nlls
    assert history.warnings == records[0].warnings


def test_alike_members_are_stacked_and_others_are_not():
    assert Members(ensemble(), settings()).stack is not None
    assert Members(ensemble(bent), settings()).stack is None
    assert Members(ensemble(), settings(entropy=0.1)).stack is None
    assert Members(network(), settings()).stack is None
    assert Members(network(), settings(), small=True).stack is not None


def test_every_member_has_its_own_clip():
    together = ensemble()
    state = State(together, settings(clip=0.05))
    batch = next(
        Batches(together, Rows.of(*data()), [torch.arange(ROWS)] * 3).shuffled(0, 0, 0, 16)
    )
    state.members.backward(0, batch.rows, RowDraws([0, 1, 2]), complete=True)
    state.members.stack.show_gradients()
    before = [[p.grad.clone() for p in one.parameters()] for one in together.members]
    lengths = state.members.gradient_lengths()
    expected = [math.sqrt(sum(float(g.square().sum()) for g in own)) for own in before]
    assert lengths.tolist() == pytest.approx(expected, rel=1e-12)
    state.members.settings = settings(clip=sorted(expected)[1])
    state.members.clip(lengths)
    for one, own, length in zip(together.members, before, expected, strict=True):
        factor = min(1.0, sorted(expected)[1] / length)
        found = [p.grad for p in one.parameters()]
        assert_close(found, [factor * g for g in own], rtol=1e-4, atol=1e-9)


class TestFolds:
    def test_are_random_and_disjoint(self):
        folds, order = random_folds(103, 0.1, seed=0)
        assert folds[order].tolist() == [place // 10 if place < 100 else -1 for place in range(103)]
        assert sorted(order.tolist()) == list(range(103))
        assert (folds == -1).sum() == 3
        assert folds[folds >= 0].bincount().tolist() == [10] * 10
        assert not torch.equal(folds, random_folds(103, 0.1, seed=1)[0])
        assert torch.equal(folds, random_folds(103, 0.1, seed=0)[0])

    @pytest.mark.parametrize(("rows", "fraction"), [(2, 0.1), (2, 0.99), (3, 0.5), (5, 0.9)])
    def test_leave_rows_on_both_sides(self, rows, fraction):
        folds, _ = random_folds(rows, fraction, seed=0)
        assert 0 < (folds == 0).sum() < rows

    def test_members_validate_on_different_ones_and_train_on_the_others(self):
        """A member whose fold holds rubbish is the only one that did not learn it."""
        x, y = data()
        y[FOLDS == 1] += 100.0
        together = ensemble(given=(x, y))
        history = train(
            together, (x, y), settings(epochs=40, learning_rate=0.02), folds=FOLDS, warn=False
        )
        assert history.member_nlls[1] > max(history.member_nlls[0], history.member_nlls[2]) + 1

    def test_are_used_again_where_there_are_fewer(self):
        """And by default they are random ones, by the seed."""
        given = settings(validation_fraction=0.5, epochs=2)
        folds, _ = random_folds(ROWS, 0.5, given.seed)
        together = ensemble()
        history = train(together, data(), given)
        assert history.validation_rows == 30
        x, y = data()
        for m, (member, nll) in enumerate(zip(together.members, history.member_nlls, strict=True)):
            part = folds == m % 2
            assert nll == pytest.approx(member.loss(x[part], y[part]).item(), rel=1e-9)

    def test_of_unequal_sizes(self):
        """A member with fewer rows begins its order again, and weights count as they are."""
        folds = torch.full((ROWS,), -1)
        folds[:5], folds[5:25], folds[25:26] = 0, 1, 2
        together = ensemble(given=data(weights=True))
        history = train(together, data(weights=True), settings(), folds=folds)
        assert (history.rows, history.validation_rows) == (ROWS - 1, 20)
        x, y, w = data(weights=True)
        for m, (member, nll) in enumerate(zip(together.members, history.member_nlls, strict=True)):
            part = folds == m
            expected = member.loss(x[part], y[part], w[part] / w[part].sum())
            assert nll == pytest.approx(expected.item(), rel=1e-9)

    @pytest.mark.parametrize(
        ("folds", "text"),
        [
            (torch.zeros(ROWS), r"folds is torch.float32, but whole numbers"),
            (torch.zeros(3, dtype=torch.long), r"folds has shape \[3\], but there are 60 rows"),
            (torch.full((ROWS,), -2), "folds has numbers below −1"),
            (torch.zeros(ROWS, dtype=torch.long), "folds has 60 of 60 observed rows in fold 0"),
            (torch.full((ROWS,), -1), "folds has 0 of 60 observed rows in fold 0"),
            (2 * torch.arange(ROWS).clamp(max=1), "folds has 0 of 60 observed rows in fold 1"),
        ],
    )
    def test_others_are_refused(self, folds, text):
        with pytest.raises(ArgumentError, match=text):
            train(ensemble(), data(), settings(), folds=folds)

    def test_not_with_validation_rows(self):
        with pytest.raises(ArgumentError, match="folds was passed with validation"):
            train(ensemble(), data(), settings(), folds=FOLDS, validation=data())

    def test_rows_that_do_not_count_have_none(self):
        x, y = data()
        more = torch.cat([x[:7], x]), torch.cat([torch.full((7, 2), NAN).double(), y])
        folds = torch.cat([torch.zeros(7, dtype=torch.long), FOLDS])
        one, other = ensemble(), ensemble()
        train(one, (x, y), settings(), folds=FOLDS)
        train(other, more, settings(), folds=folds)
        assert_close(weights_of(one), weights_of(other), rtol=0, atol=0)


def test_all_validate_on_given_rows_each_by_its_own_loss():
    together, validation = ensemble(), [t[:20] for t in data(gaps=True)]
    history = train(together, data(), settings(), validation=validation)
    losses = [member.loss(*validation).item() for member in together.members]
    assert history.member_nlls == pytest.approx(losses, rel=1e-9)
    assert (history.rows, history.validation_rows) == (ROWS, 20)


def test_validation_rows_far_outside_go_by_the_members_own_rule():
    x, y = data()
    together, validation = ensemble(), (50 * x[:20], y[:20])
    history = train(together, (x, y), settings(epochs=2), validation=validation)
    losses = [member.loss(*validation).item() for member in together.members]
    assert history.member_nlls == pytest.approx(losses, rel=1e-9)


def test_without_validation_rows_all_train_on_every_row():
    together = ensemble()
    history = train(together, data(), settings(validation_fraction=0.0))
    assert (history.rows, history.validation_rows) == (ROWS, 0)
    losses = [member.loss(*data()).item() for member in together.members]
    assert history.member_nlls == pytest.approx(losses, rel=1e-9)


def test_parameters_keep_their_identity_and_get_memory_of_their_own():
    together = ensemble()
    held = list(together.parameters())
    train(together, data(), settings(epochs=1))
    for parameter, before in zip(together.parameters(), held, strict=True):
        assert parameter is before
        assert parameter.untyped_storage().nbytes() == parameter.nbytes


def test_callbacks_see_the_members_in_training():
    together, seen = ensemble(), []
    train(
        together,
        data(),
        settings(epochs=3),
        callbacks=lambda _: seen.append(
            torch.cat([p.detach().flatten().clone() for p in together.parameters()])
        ),
    )
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])


def test_a_frozen_member_stays_as_it_is():
    together = ensemble()
    together.members[1].requires_grad_(False)
    before = copy.deepcopy(together)
    history = train(together, data(), settings(), validation=data())
    assert history.member_epochs[1] == -1
    pairs = zip(together.members, before.members, strict=True)
    same = [all(map(torch.equal, weights_of(now), weights_of(then))) for now, then in pairs]
    assert same == [False, True, False]


def test_diagnoses_rows_from_all_over_a_fold():
    """Rows may be in order, here of their target; the first ones are not like the others."""
    y = torch.linspace(-3, 3, 3000, dtype=torch.float64).unsqueeze(1)
    x = torch.zeros(3000, 1, dtype=torch.float64)
    made = [MixtureNetwork.of(1, 1, n_components=2, width=4).double() for _ in range(2)]
    together = Ensemble(made).prepare(x, y)
    history = train(together, (x, y), settings(epochs=1, learning_rate=1e-9, clip=1.0), warn=False)
    assert history.epochs[0].usage == pytest.approx([0.25] * 4, abs=0.03)


def test_autocast_dropout_and_noise():
    together = ensemble(dropout=0.3).float()
    changes = {"autocast": True, "condition_noise": 0.1, "target_noise": 0.1}
    found = [train(copy.deepcopy(together), data(), settings(**changes)).best_nll for _ in range(2)]
    assert found[0] == found[1]
    assert math.isfinite(found[0])


def test_what_diverges_is_named():
    together = ensemble().float()
    with torch.no_grad():
        together.members[1].head.linear.bias.fill_(3e38)
    with pytest.raises(TrainingError, match=r"The worst parameter is networks\.1\.") as caught:
        train(together, data(), settings(epochs=20))
    assert "not finite" in str(caught.value)
    for parameter in together.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    assert runs.finish(runs.run, tmp_path / "whole", None, None, None, None, 3) == 0
    directory = tmp_path / "run"
    assert runs.finish(runs.run, tmp_path / "cut", directory, None, None, 45, 3) == -9
    assert runs.finish(runs.run, tmp_path / "cut", directory, None, None, None, 3) == 0
    whole, cut = (torch.load(tmp_path / name) for name in ("whole", "cut"))
    for name, tensor in whole["weights"].items():
        assert torch.equal(tensor, cut["weights"][name]), name
    assert whole["history"]["member_nlls"] == cut["history"]["member_nlls"]
    assert whole["history"]["member_epochs"] == cut["history"]["member_epochs"]


def test_a_run_keeps_its_folds(tmp_path):
    train(ensemble(), data(), settings(), folds=FOLDS, directory=tmp_path)
    other = ensemble()
    with pytest.raises(RunDirectoryError, match="holds a run on other data"):
        train(other, data(), settings(), folds=FOLDS.flip(0), directory=tmp_path)
    for parameter in other.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
