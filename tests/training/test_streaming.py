"""Training on shards: every row once, the same for any number of processes, as in memory."""

import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import processes, runs
from helpers.processes import TARGETS

from condens import MDNRegressor
from condens.data import Shards
from condens.data.survey import TRAINING
from condens.errors import ArgumentError
from condens.nn import Ensemble, MixtureNetwork
from condens.training import Stream, train
from condens.training.distributed import Group


def stream(tmp_path, whole=None, *, group=170, files=3, form="parquet", **options):
    whole = processes.table() if whole is None else whole
    pattern = processes.write_shards(tmp_path / form, whole, files, group, form)
    return Stream.open(Shards(pattern), targets=TARGETS, **options)


def opened(made, members=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    columns = made.survey.encoder.columns
    networks = [
        MixtureNetwork.of(columns, 2, n_components=3, width=32, generator=generator).double()
        for _ in range(members)
    ]
    network = networks[0] if members == 1 else Ensemble(networks)
    made.prepare(network, runs.settings())
    return network, made.batches(network)[0]


def rows_of(batches, *arguments, group=None):
    return list(batches.shuffled(*arguments, group))


class TestOrder:
    @pytest.mark.parametrize("size", [64, 50, 7, 5000])
    @pytest.mark.parametrize("form", ["parquet", "arrow"])
    def test_an_epoch_has_every_row_once(self, tmp_path, size, form):
        made = stream(tmp_path, form=form)
        network, batches = opened(made)
        found = rows_of(batches, 3, 0, 0, size)
        assert sum(len(batch) for batch in found) == sum(batch.total for batch in found) == 1500
        assert all(batch.total == size for batch in found[:-1])
        seen = torch.cat([batch.rows.condition[0] for batch in found])
        x = torch.tensor(processes.table().to_pandas()[["x0", "x1", "x2"]].to_numpy())
        expected = network.standardise_condition(x)
        assert torch.equal(seen.sort(0).values, expected.sort(0).values)
        assert not torch.equal(seen, expected)

    @pytest.mark.parametrize(("size", "processes_"), [(64, 2), (50, 3), (5000, 4), (64, 16)])
    def test_processes_share_every_batch(self, tmp_path, size, processes_):
        _, batches = opened(stream(tmp_path))
        batches.window_rows = 200
        whole = rows_of(batches, 3, 1, 0, size)
        parts = [
            rows_of(batches, 3, 1, 0, size, group=Group(rank, processes_))
            for rank in range(processes_)
        ]
        for number, batch in enumerate(whole):
            ours = [part[number] for part in parts]
            for place in range(3):
                joined = torch.cat([one.rows[place] for one in ours], 1)
                assert torch.equal(joined, batch.rows[place])
            assert {one.total for one in ours} == {batch.total}
            firsts = [one.first for one in ours]
            assert firsts == list(np.cumsum([batch.first, *(len(one) for one in ours[:-1])]))

    def test_an_epoch_can_be_entered_anywhere(self, tmp_path):
        _, batches = opened(stream(tmp_path))
        batches.window_rows = 200
        whole = rows_of(batches, 3, 1, 0, 64)
        for start in range(len(whole) + 1):
            later = rows_of(batches, 3, 1, start, 64)
            assert len(later) == len(whole) - start
            for one, other in zip(later, whole[start:], strict=True):
                assert torch.equal(one.rows.condition, other.rows.condition)
                assert one.first == other.first

    def test_seed_and_epoch_decide_the_order(self, tmp_path):
        _, batches = opened(stream(tmp_path))
        orders = {
            str(rows_of(batches, seed, epoch, 0, 64)[0].rows.condition[0, :4].tolist())
            for seed in (0, 1)
            for epoch in (0, 1)
        }
        assert len(orders) == 4

    def test_a_batch_mixes_the_files(self, tmp_path):
        """Files hold different rows; a batch has about its share of each."""
        whole = processes.table(2000)
        file = np.repeat(np.arange(4), 500)
        columns = {name: np.array(whole[name]) for name in whole.column_names}
        import pyarrow as pa

        made = stream(tmp_path, pa.table({**columns, "x0": file * 1.0}), files=4, group=50)
        _, batches = opened(made)
        spread = [batch.rows.condition[0, :, 0].var() for batch in rows_of(batches, 0, 0, 0, 64)]
        # All rows together have variance 1; a batch from one file has 0.
        assert torch.stack(spread[:-1]).mean() > 0.8


class TestWeights:
    def test_rows_that_are_set_apart_have_weight_zero_for_a_member(self, tmp_path):
        made = stream(tmp_path, test=0.2, validation=0.1, n_members=3)
        _, batches = opened(made, members=3)
        totals = torch.zeros(3, dtype=torch.float64)
        zeros = torch.zeros(3)
        for batch in rows_of(batches, 0, 0, 0, 64):
            weights = batch.rows.weights * batch.total
            totals += weights.sum(1)
            zeros += (weights == 0).sum(1)
        # The rows of an epoch count one on average.
        torch.testing.assert_close(totals, torch.full((3,), 1500.0, dtype=torch.float64))
        held = made.apart("validation").folds
        apart = len(made.apart("test").rows)
        assert zeros.tolist() == [apart + (held == member).sum() for member in range(3)]

    def test_weights_and_targets_without_a_value(self, tmp_path):
        import pyarrow as pa

        whole = processes.table(1500, gaps=True)
        weights = np.random.default_rng(0).random(1500)
        weights[::10] = 0
        made = stream(
            tmp_path, whole.append_column("w", pa.array(weights)), weights="w", validation=0.1
        )
        _, batches = opened(made)
        found = rows_of(batches, 0, 0, 0, 64)
        frame = whole.to_pandas()
        useless = frame[TARGETS].isna().all(axis=1).to_numpy() | (weights == 0)
        held = len(made.apart("validation").rows)
        zeros = sum(int((batch.rows.weights == 0).sum()) for batch in found)
        assert zeros == useless.sum() + held
        assert made.rows_left_out == pytest.approx(useless.sum() * 0.9, abs=30)
        assert not batches.complete


class TestLikeInMemory:
    """The same rows, in files and in memory."""

    def networks(self, tmp_path, whole, settings, members=1, **options):
        made = stream(tmp_path, whole, n_members=members, **options)
        in_files, _ = opened(made, members)
        held, sample = made.apart("validation"), made.sample
        in_memory, _ = opened(made, members)
        folds = torch.from_numpy(sample.folds)
        options = {"folds": folds} if members > 1 else {"validation": held.rows}
        train(in_files, made, settings, warn=False)
        # Rows of weight zero are none in memory: as many steps, of as many rows that count.
        trained = len(folds) - int((folds == 0).sum())
        size = round(settings.batch_size * trained / made.n_rows)
        train(in_memory, sample.rows, replace(settings, batch_size=size), warn=False, **options)
        return in_files, in_memory, held.rows

    @pytest.mark.slow
    @pytest.mark.parametrize("members", [1, 2])
    @pytest.mark.parametrize("gaps", [False, True])
    def test_losses_are_alike(self, tmp_path, members, gaps):
        settings = runs.settings(epochs=30, condition_noise=0.0, target_noise=0.0)
        whole = processes.table(3000, gaps=gaps)
        files, memory, rows = self.networks(tmp_path, whole, settings, members)
        one, other = (net.loss(rows.condition, rows.target).item() for net in (files, memory))
        # They differ in the order of their rows.
        assert one == pytest.approx(other, abs=0.1)
        for name in ("location", "scale"):
            torch.testing.assert_close(
                getattr(files.target_scaling, name),
                getattr(memory.target_scaling, name),
                rtol=1e-10,
                atol=1e-12,
            )
            torch.testing.assert_close(
                getattr(files.condition_scaling, name),
                getattr(memory.condition_scaling, name),
                rtol=1e-10,
                atol=1e-12,
            )

    def test_train_losses_are_in_the_units_of_the_targets(self, tmp_path):
        """With a rate of zero the loss of an epoch is that of the rows, gaps and transforms in."""
        from condens.transforms import Interval, Real

        whole = processes.table(900, gaps=True, counts=True)
        made = stream(tmp_path, whole, validation=0.2)
        network = MixtureNetwork.of(
            made.survey.encoder.columns, 2, n_components=2, transforms=[Real(), Interval(0.0, 1.0)]
        ).double()
        settings = runs.settings(
            epochs=1, learning_rate=1e-300, weight_decay=0.0, condition_noise=0.0, target_noise=0.0
        )
        history = train(network, made, settings, warn=False)
        rows, folds = made.sample.rows, torch.from_numpy(made.sample.folds)
        own = rows.take((folds == TRAINING).nonzero()[:, 0])
        expected = network.loss(own.condition, own.target).item()
        assert history.epochs[0].train_nll == pytest.approx(expected, rel=1e-9)
        held = made.apart("validation").rows
        expected = network.loss(held.condition, held.target).item()
        assert history.best_nll == pytest.approx(expected, rel=1e-9)


CASES = {
    "plain": ({}, {}, 1, None),
    "members, gaps, categories": ({"gaps": True, "town": True}, {}, 2, None),
    "counts and shares": ({"counts": True}, {}, 1, processes.counts_and_shares),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param("plain", marks=pytest.mark.slow),
        "members, gaps, categories",
        pytest.param("counts and shares", marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_the_bits_of_one(tmp_path, case):
    options, changes, members, transforms = CASES[case]
    pattern = processes.write_shards(tmp_path / "shards", processes.table(**options))
    arguments = (processes.streamed, pattern, members, changes, None, transforms)
    (one,), _ = processes.together(tmp_path / "one", 1, *arguments)
    two, _ = processes.together(tmp_path / "two", 2, *arguments)
    assert two[0] == two[1]
    assert two[0]["weights"] == one["weights"] == arguments[0](*arguments[1:])["weights"]
    np.testing.assert_allclose(two[0]["curve"], one["curve"], rtol=1e-6)


def _opened_otherwise(folder, what):
    second = os.environ["RANK"] == "1"
    options = {"seed": 1} if second and what == "seed" else {}
    Stream.open(
        Shards(f"{folder}/{'b' if second and what == 'files' else 'a'}"),
        targets=TARGETS,
        **options,
    )


@pytest.mark.parametrize(
    ("what", "message"),
    [
        pytest.param("files", r"^shards differs between", marks=pytest.mark.slow),
        ("seed", r"^Stream.open differs between process 0 and process 1"),
    ],
)
def test_processes_that_open_other_shards_are_refused(tmp_path, what, message):
    for name, rows in (("a", 300), ("b", 200)):
        processes.write_shards(tmp_path / name, processes.table(rows))
    found, _ = processes.together(tmp_path / "out", 2, _opened_otherwise, tmp_path, what)
    assert all(re.search(message, one["message"]) for one in found)


def test_resumed_in_the_middle_of_an_epoch_gives_the_same_bytes(tmp_path):
    pattern = processes.write_shards(tmp_path / "shards", processes.table())
    whole = processes.streamed(pattern, 2)
    directory = str(tmp_path / "run")
    from condens.training import loop

    step, count = loop._Loop._step, []

    def dies(self, batch):
        count.append(1)
        if len(count) == 32:
            assert self.state.position.batch > 2
            raise InterruptedError
        step(self, batch)

    loop._Loop._step = dies
    try:
        with pytest.raises(InterruptedError):
            processes.streamed(pattern, 2, directory=directory)
    finally:
        loop._Loop._step = step
    again = processes.streamed(pattern, 2, directory=directory)
    assert again["weights"] == whole["weights"]
    assert again["curve"] == whole["curve"]


def test_other_files_are_another_run(tmp_path):
    pattern = processes.write_shards(tmp_path / "shards", processes.table())
    directory = str(tmp_path / "run")
    processes.streamed(pattern, directory=directory, changes={"epochs": 1})
    processes.write_shards(tmp_path / "shards", processes.table(seed=1))
    from condens.errors import RunDirectoryError

    with pytest.raises(RunDirectoryError, match="holds a run on other data"):
        processes.streamed(pattern, directory=directory, changes={"epochs": 1})


class TestEstimator:
    def model(self, tmp_path, whole, **options):
        pattern = processes.write_shards(tmp_path / "shards", whole)
        parameters = {"epochs": 3, "random_state": 0, "n_members": 2, "width": 16, "n_bins": 0}
        parameters |= {"shortcut": False, **options}
        return MDNRegressor(**parameters).fit_shards(pattern, TARGETS, test_fraction=0.1)

    def test_is_a_model_like_any_other(self, tmp_path):
        whole = processes.table(1500, gaps=True, town=True)
        model = self.model(tmp_path, whole, calibration_fraction=0.1)
        x = whole.drop_columns(TARGETS)
        assert model.predict(x).shape == (1500, 2)
        assert model.n_features_in_ == 4
        assert model.target_names_ == ("u", "v")
        assert model.network_.tail is not None
        assert model.history_.adjustment.rows > 30
        assert model.calibration_ is not None
        assert model.summary_ is not None
        test = model.held_out_
        assert len(test.rows) == pytest.approx(150, abs=50)
        model.save(tmp_path / "model.condens")
        again = MDNRegressor.load(tmp_path / "model.condens")
        np.testing.assert_array_equal(again.predict(x[:50]), model.predict(x[:50]))
        assert not hasattr(again, "held_out_")

    def test_references_and_tail_are_those_of_the_training_rows(self, tmp_path):
        model = self.model(tmp_path, processes.table(1500))
        assert model.baselines_.n_rows == pytest.approx(1500 * 0.85, abs=60)
        test = model.held_out_.table
        x, y = test.drop_columns(TARGETS), test.select(TARGETS)
        assert model.score_samples(x, y).mean() > -6

    @pytest.mark.slow
    def test_several_components_counts_and_auto(self, tmp_path):
        whole = processes.table(900, counts=True)
        model = self.model(
            tmp_path,
            whole,
            n_members=1,
            n_components="auto",
            target_transform={"u": "count", "v": "unit"},
            shortcut="auto",
        )
        drawn = model.sample(whole.drop_columns(TARGETS)[:20], 5, random_state=0)
        assert (drawn[..., 0] == np.round(drawn[..., 0])).all()
        assert ((drawn[..., 1] > 0) & (drawn[..., 1] < 1)).all()

    def test_targets_outside_their_support_are_named(self, tmp_path):
        with pytest.raises(ArgumentError, match=r"target u|column 'u'"):
            self.model(tmp_path, processes.table(900), target_transform={"u": "positive"})

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"warm_start": True}, "warm_start is True in a fit to shards"),
            ({"directory": "run", "random_state": None}, "needs the same seed again"),
        ],
    )
    def test_what_does_not_go_together(self, tmp_path, options, message):
        with pytest.raises(ArgumentError, match=message):
            self.model(tmp_path, processes.table(300), **options)

    def test_unknown_columns(self, tmp_path):
        pattern = processes.write_shards(tmp_path, processes.table(300, town=True))
        for targets, message in (
            (["w"], "the shards have no column 'w'"),
            (["town"], "column 'town' holds categories"),
        ):
            with pytest.raises(ArgumentError, match=message):
                MDNRegressor(epochs=1).fit_shards(pattern, targets)


def test_a_network_of_other_columns_or_members_is_refused(tmp_path):
    made = stream(tmp_path, n_members=2)
    with pytest.raises(ArgumentError, match="has 1 member"):
        train(MixtureNetwork.of(3, 2), made)
    with pytest.raises(ArgumentError, match="condition has shape"):
        train(MixtureNetwork.of(4, 2), made)
    with pytest.raises(ArgumentError, match="validation was passed with a Stream"):
        train(MixtureNetwork.of(3, 2), made, validation=(torch.zeros(5, 3), torch.zeros(5, 2)))


def test_scales_of_transformed_targets_are_those_of_the_training_rows(tmp_path):
    from condens.transforms import Interval, Real

    made = stream(tmp_path, processes.table(900, gaps=True, counts=True), validation=0.3)
    transforms = [Real(), Interval(0.0, 1.0)]
    networks = [
        MixtureNetwork.of(made.survey.encoder.columns, 2, transforms=transforms) for _ in range(2)
    ]
    made.prepare(networks[0], runs.settings())
    networks[1].prepare(*made.sample.rows[:2])
    for name in ("location", "scale"):
        one, other = (getattr(network.target_scaling, name) for network in networks)
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
