"""Fits in threads give the bytes they give alone, and the user's generator is left alone."""

import copy
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.model_selection import cross_val_score
from torch import Generator, nn

from condens import MDNRegressor
from condens.data.stream import uniform
from condens.errors import ArgumentError
from condens.inference import posterior
from condens.nn import HEADS, MLP, Ensemble, MixtureNetwork, TableMLP
from condens.nn.randomness import (
    Dropout,
    RowDraws,
    _mix,
    drawing_from,
    draws_from_torch,
    torch_seeded_by,
)
from condens.persistence import network_from_dict, network_to_dict
from condens.training import Settings, choose_components, train
from condens.training.threads import _limits, one_thread

pytestmark = pytest.mark.filterwarnings("ignore:.*component")
THREADS, FITS = 4, 8

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(120, 2))
Y = X @ [[1.0, 0.5], [0.0, 1.0]] + 0.3 * RANDOM.normal(size=(120, 2))
COUNTS = RANDOM.poisson(np.exp(X))
FRAME = pd.DataFrame(
    {"a": X[:, 0], "town": pd.Categorical.from_codes(COUNTS[:, 0] % 3, list("uvw"))}
)
NOISY = Settings(epochs=3, batch_size=20, condition_noise=0.1, target_noise=0.1, warmup_steps=2)


class Drawing(nn.Module):
    """A backbone of a user's: first weights and dropout are torch's draws."""

    features = 8

    def __init__(self, columns):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(columns, 8), nn.ReLU(), nn.Dropout(0.3))

    def forward(self, condition):
        return self.layers(condition)


VARIANTS = {
    "plain": ({}, X, Y),
    "dropout": ({"dropout": 0.3}, X, Y),
    "counts": ({"target_transform": "count"}, X, COUNTS),
    "members": ({"n_members": 3, "dropout": 0.1}, X, Y),
    "chosen": ({"n_components": "auto", "settings": replace(NOISY, epochs=1)}, X, Y),
    "categories": ({"dropout": 0.2}, FRAME, Y),
    "low rank": ({"covariance": "low_rank"}, X, Y),
    "own backbone": ({"backbone": Drawing}, X, Y),
    "own backbone, chosen": (
        {"backbone": Drawing, "n_components": "auto", "settings": Settings(epochs=1)},
        X,
        Y,
    ),
}


def fit(variant, seed):
    """Return every byte of a fitted network, and its losses."""
    options, x, y = VARIANTS[variant]
    options = {"n_components": 3, "n_members": 1, "width": 8, "settings": NOISY, **options}
    model = MDNRegressor(random_state=seed, **options).fit(x, y)
    weights = {name: t.numpy().tobytes() for name, t in model.network_.state_dict().items()}
    return weights, [epoch.train_nll for epoch in model.history_.epochs]


# The others differ in what they fit, and in what is drawn.
QUICK = ("own backbone",)


@pytest.mark.parametrize(
    "variant",
    [v if v in QUICK else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS],
)
def test_fits_in_threads_give_the_bytes_they_give_alone(variant):
    seeds = range(THREADS)
    alone = [fit(variant, seed) for seed in seeds]
    assert len({str(sorted(weights.items())) for weights, _ in alone}) == THREADS
    start = threading.Barrier(THREADS)  # so that they do meet
    # A choice of components is a dozen fits.
    times = 1 if "chosen" in variant else FITS // THREADS

    def several(seed):
        start.wait()
        return [fit(variant, seed) for _ in range(times)]

    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(several, seeds))
    for seed in seeds:
        assert found[seed] == times * [alone[seed]]


@pytest.mark.parametrize("variant", ["dropout", "chosen"])
def test_draws_beside_fits_are_the_users_own(variant):
    found = []
    with ThreadPoolExecutor(2) as pool:
        torch.manual_seed(3)
        running = [pool.submit(fit, variant, seed) for seed in range(4)]
        while not all(future.done() for future in running):
            found.append(torch.rand(5))
            time.sleep(1e-4)
        for future in running:
            future.result()
    torch.manual_seed(3)
    assert all(torch.equal(drawn, torch.rand(5)) for drawn in found)


def test_warnings_filters_are_not_touched(monkeypatch):
    """catch_warnings is not for threads: one that ends restores what another had changed."""

    def refuse(*_, **__):
        raise AssertionError("the filters are everybody's")

    with monkeypatch.context() as patch:
        for name in ("catch_warnings", "filterwarnings", "simplefilter"):
            patch.setattr(f"warnings.{name}", refuse)
        fit("plain", 0)
        fit("chosen", 0)
        MDNRegressor(width=8, settings=NOISY, random_state=0).fit(X, Y)
        posterior(Y, X, settings=NOISY)


def test_a_callback_may_wait_for_another_run():
    """Nobody holds torch's generator while somebody else's code runs."""
    others = []

    def other():
        others.append(fit("own backbone", 1))

    def wait(epoch):
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()

    network = MixtureNetwork(Drawing(2), HEADS["full"](8, 2, 2), condition_columns=2)
    train(network, (X, Y), NOISY, callbacks=wait)
    assert others == 3 * [fit("own backbone", 1)]


def model(**options):
    return MDNRegressor(
        3, **{"n_members": 1, "width": 8, "settings": NOISY, "random_state": 0, **options}
    )


def networks(**options):
    return MixtureNetwork.of(2, 2, n_components=3, width=8, generator=Generator(), **options)


def raising(epoch):
    raise LookupError


@cache
def fitted(**options):
    return model(calibration_fraction=0.2, **options).fit(X, Y)


ACTIONS = {
    "fit": lambda: model(dropout=0.3).fit(X, Y),
    "fit with calibration": lambda: model(calibration_fraction=0.3).fit(X, Y),
    "fit with a backbone": lambda: model(backbone=Drawing).fit(X, Y),
    "fit of members": lambda: model(n_members=2).fit(X, Y),
    "fit of a choice": lambda: model(dropout=0.1).set_params(n_components="auto").fit(X, Y),
    "fit of counts": lambda: model(target_transform="count").fit(X, COUNTS),
    "fit again": lambda: copy.deepcopy(fitted()).set_params(warm_start=True).fit(X, Y),
    "fit again, own backbone": lambda: copy.deepcopy(fitted(backbone=Drawing)).partial_fit(X, Y),
    "partial_fit": lambda: model(dropout=0.3).partial_fit(X, Y),
    "fit that fails early": lambda: model().fit(X, Y + np.inf),
    "fit that fails in the backbone": lambda: model(backbone=lambda _: torch.rand(2)).fit(X, Y),
    "fit that fails in a step": lambda: model(backbone=lambda _: Failing()).fit(X, Y),
    "train": lambda: train(networks(dropout=0.2), (X, Y), NOISY),
    "train that fails": lambda: train(networks(dropout=0.2), (X, Y), NOISY, callbacks=raising),
    "train of a user's module": lambda: train(
        MixtureNetwork(
            copy.deepcopy(fitted(backbone=Drawing).network_.backbone).float(), networks().head
        ),
        (X, Y),
    ),
    "choose_components": lambda: choose_components(
        lambda k: MixtureNetwork.of(2, 2, n_components=k, width=8), (X, Y), NOISY, max_components=4
    ),
    "cross_val_score": lambda: cross_val_score(model(dropout=0.2), X, Y, cv=2),
    "posterior": lambda: posterior(Y, X, settings=NOISY),
    "predict": lambda: fitted().predict(X, return_std=True),
    "predict_quantiles": lambda: fitted().predict_quantiles(X),
    "predict_region": lambda: fitted().predict_region(X[:5]),
    "calibrate": lambda: copy.deepcopy(fitted()).calibrate(X, Y),
    "score": lambda: (fitted().score(X, Y), fitted().score_samples(X, Y)),
    "sample": lambda: fitted().sample(X, 3, random_state=1),
    "sample of a density": lambda: fitted().predict_dist(X).sample(generator=Generator()),
    "a network's document": lambda: network_from_dict(
        network_to_dict(fitted().network_), fitted().network_.state_dict()
    ),
    "fewer components": lambda: fitted().network_.with_components([0, 2]),
    "networks with a generator": lambda: networks(dropout=0.2, normalise=True),
}


class Failing(Drawing):
    def __init__(self):
        super().__init__(2)

    def forward(self, condition):
        torch.rand(3)
        if self.training:
            raise LookupError
        return super().forward(condition)


@pytest.mark.parametrize("action", ACTIONS)
def test_torchs_generator_is_left_as_it_was(action):
    torch.manual_seed(4)
    before = torch.get_rng_state()
    with suppress(LookupError, ArgumentError):
        ACTIONS[action]()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_users_seed_does_not_matter_to_a_fit():
    found = []
    for seed in range(2):
        torch.manual_seed(seed)
        found.append(fit("own backbone", 0))
    assert found[0] == found[1]


class TestFirstWeights:
    @pytest.mark.parametrize(
        "make",
        [
            lambda **g: MLP(3, 16, 3, normalise=True, dropout=0.1, **g),
            lambda **g: TableMLP(1, [3, 5], 16, **g),
            lambda **g: MixtureNetwork.of(3, 2, width=8, categories=(4,), **g),
            *(lambda kind=kind, **g: HEADS[kind](4, 3, 2, **g) for kind in HEADS),
        ],
    )
    def test_a_generator_gives_what_torchs_gives(self, make):
        torch.manual_seed(8)
        expected = make()
        found = make(generator=Generator().manual_seed(8))
        assert expected.state_dict().keys() == found.state_dict().keys()
        for name, tensor in expected.state_dict().items():
            assert torch.equal(tensor, found.state_dict()[name]), name

    def test_are_those_of_torchs_layers(self):
        torch.manual_seed(8)
        expected = nn.Linear(7, 5)
        torch.manual_seed(8)
        found = MLP(7, 5, 1).layers[0]
        assert torch.equal(found.weight, expected.weight)
        assert torch.equal(found.bias, expected.bias)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_have_the_default_dtype_and_device(self, dtype):
        with torch.device("meta"):
            assert MLP(2, 4).layers[0].weight.device.type == "meta"
        torch.set_default_dtype(dtype)
        try:
            assert {p.dtype for p in networks().parameters()} == {dtype}
        finally:
            torch.set_default_dtype(torch.float32)


def draws(rows, first=0, seeds=(8,)):
    made = RowDraws(seeds)
    made.begin(epoch=1, first=first, rows=rows)
    if len(seeds) == 1:
        made.choose(0)
    return made


class TestRowDraws:
    def test_the_hash_is_splitmix64(self):
        """Its first numbers from the state 0, as published; both implementations."""
        expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
        golden = 0x9E3779B97F4A7C15
        states = [(golden * number) % 2**64 for number in (1, 2, 3)]
        words = torch.tensor([state - 2**64 if state >= 2**63 else state for state in states])
        assert [word % 2**64 for word in _mix(words).tolist()] == expected
        found = uniform(np.arange(3, dtype=np.uint64))
        assert found.tolist() == [(word >> 11) * 2.0**-53 for word in expected]

    def test_a_row_has_the_same_numbers_in_every_part(self):
        whole = draws(10, seeds=(1, 2))
        numbers = [whole.normal([2, 10, 3], torch.float64) for _ in range(2)]
        mask = whole.kept([2, 10, 6], 0.5, torch.float32)
        for first, rows in ((0, 4), (4, 1), (5, 5)):
            part = draws(rows, first, seeds=(1, 2))
            for expected in numbers:
                found = part.normal([2, rows, 3], torch.float64)
                assert torch.equal(found, expected[:, first : first + rows])
            found = part.kept([2, rows, 6], 0.5, torch.float32)
            assert torch.equal(found, mask[:, first : first + rows])

    def test_a_member_alone_has_the_numbers_it_has_among_others(self):
        together, alone = draws(5, seeds=(1, 2)), draws(5, seeds=(2,))
        expected = together.normal([2, 5, 3], torch.float64)[1]
        assert torch.equal(alone.normal([5, 3], torch.float64), expected)
        together.choose(1)
        assert torch.equal(together.normal([5, 3], torch.float64), expected)

    def test_nothing_repeats_over_calls_rows_members_and_epochs(self):
        made = RowDraws((1, 2))
        seen = []
        for epoch in range(3):
            made.begin(epoch=epoch, first=7, rows=50)
            seen += [made.normal([2, 50, 4], torch.float64) for _ in range(3)]
        numbers = torch.cat([part.flatten() for part in seen])
        assert len(numbers.unique()) == len(numbers)

    def test_normal_numbers_are_normal_and_independent(self):
        numbers = draws(2000).normal([2000, 100], torch.float64)
        assert stats.kstest(numbers.flatten().numpy(), "norm").pvalue > 1e-3
        bound = 4 / math.sqrt(numbers.numel())
        for other in (numbers.roll(1, 0), numbers.roll(1, 1), numbers.roll((1, 1), (0, 1))):
            assert abs((numbers * other).mean().item()) < bound
            # Of the squares too, which have variance 2.
            squares = (numbers.square() - 1) * (other.square() - 1) / 2
            assert abs(squares.mean().item()) < bound


class TestDropout:
    def test_draws_from_torch_as_torchs_does_and_within_a_run_from_the_runs_generator(self):
        x, layer = torch.randn(50, 41), nn.Sequential(Dropout(0.3))
        torch.manual_seed(8)
        expected = nn.Dropout(0.3)(x)
        torch.manual_seed(8)
        assert torch.equal(layer(x), expected)
        with drawing_from(layer, draws(50)):
            found = layer(x)
        assert torch.equal(found, x * draws(50).kept([50, 41], 0.3, torch.float32))

    @pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
    def test_entries_are_independent(self, p):
        """Of the next ones, by which draws share a word, and of those in the next row."""
        mask = draws(1000).kept([1000, 402], p, torch.float64) == 0
        share, n = mask.double().mean().item(), mask.numel()
        # Four standard errors, with 10⁻⁵ for the 16 bits.
        assert share == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / n) + 1e-5)
        centred = mask.double() - share
        for apart in (1, 2, 3, 4, 402):
            flat = centred.flatten()
            together = (flat[apart:] * flat[:-apart]).mean().item() / (p * (1 - p))
            assert abs(together) < 4 / math.sqrt(n - apart)

    @pytest.mark.parametrize(("p", "expected"), [(0.0, 1.0), (1 - 1e-9, 0.0)])
    def test_all_or_nothing(self, p, expected):
        mask = draws(7).kept([7, 3], p, torch.float32)
        assert mask.flatten().tolist() == [expected] * 21

    def test_leaves_the_mean_and_the_share(self):
        layer, x = Dropout(0.3), torch.ones(2000, 100)
        with drawing_from(layer, draws(2000)):
            found = layer(x)
        # Four standard errors.
        assert (found == 0).double().mean().item() == pytest.approx(0.3, abs=0.0041)
        assert found.mean().item() == pytest.approx(1, abs=0.0059)
        # The share that is dropped has 16 bits.
        factor = 1 / (1 - round(0.3 * 2**16) / 2**16)
        assert set(found.flatten().tolist()) == {0.0, torch.tensor(factor).item()}

    def test_does_nothing_in_evaluation(self):
        layer, x = Dropout(0.3).eval(), torch.randn(5, 2)
        with drawing_from(layer, draws(5)):
            assert layer(x) is x

    def test_a_backbone_that_changes_the_axes_has_its_own_draws(self):
        layer, x = Dropout(0.3), torch.ones(60_000)
        found = []
        for first in (0, 0, 5):
            with drawing_from(layer, draws(5, first)):
                found.append(layer(x))
        assert torch.equal(found[0], found[1])
        assert not torch.equal(found[0], found[2])
        assert (found[0] == 0).double().mean().item() == pytest.approx(0.3, abs=0.0075)
        assert found[0].amax().item() == pytest.approx(1 / 0.7)

    def test_a_copy_made_in_a_run_draws_from_torchs(self):
        copies = []
        network = networks(dropout=0.3)
        with pytest.raises(LookupError):
            train(
                network,
                (X, Y),
                NOISY,
                callbacks=lambda epoch: (copies.append(copy.deepcopy(network)), raising(epoch)),
            )
        for one in (network, copies[0]):
            dropouts = [module for module in one.modules() if isinstance(module, Dropout)]
            assert [module.draws for module in dropouts] == [None]


class TestWhoDraws:
    DRAWING = (
        nn.Dropout(0.1),
        nn.Dropout2d(0.1),
        nn.AlphaDropout(0.1),
        nn.RReLU(),
        nn.FractionalMaxPool2d(2, 2),
        nn.GRU(2, 2, 2, dropout=0.1),
        nn.MultiheadAttention(2, 1, dropout=0.1),
        nn.TransformerEncoderLayer(2, 1),
        nn.LazyLinear(3),
        Drawing(2),
        type("Derived", (MLP,), {})(2),
    )

    @pytest.mark.parametrize("module", DRAWING, ids=lambda module: type(module).__name__)
    def test_modules_of_others(self, module):
        assert draws_from_torch(nn.Sequential(nn.Linear(2, 2), module))

    def test_not_ours_nor_torchs_quiet_ones(self):
        everything = [networks(covariance=kind, dropout=0.1, normalise=True) for kind in HEADS]
        assert not draws_from_torch(Ensemble(everything[:3]))
        assert not draws_from_torch(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GELU()))

    @pytest.mark.parametrize("how", ["hook", "pre-hook", "another forward"])
    def test_what_others_put_into_our_modules(self, how):
        network = networks()
        layer = network.backbone.layers[0]
        if how == "hook":
            layer.register_forward_hook(lambda _, __, out: out + torch.randn_like(out))
        elif how == "pre-hook":
            layer.register_forward_pre_hook(lambda _, given: (torch.randn_like(given[0]),))
        else:
            layer.forward = torch.randn_like
        assert draws_from_torch(network)

    def test_a_loan_within_a_loan(self):
        before = torch.get_rng_state()
        with torch_seeded_by(Generator().manual_seed(1)):
            first = torch.rand(3)
            with torch_seeded_by(Generator().manual_seed(2)):
                torch.rand(3)
            second = torch.rand(3)
        assert torch.equal(torch.get_rng_state(), before)
        with torch_seeded_by(Generator().manual_seed(1)):
            assert torch.equal(torch.rand(6), torch.cat([first, second]))


@pytest.mark.skipif(_limits() == (int, int), reason="this build of torch does not say")
class TestOneThread:
    @pytest.fixture(autouse=True)
    def _two_threads(self):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        yield
        assert torch.get_num_threads() == 2
        torch.set_num_threads(before)

    def test_is_said_to_no_other_thread(self):
        found = []

        def look():
            torch.zeros(3).add(1)
            found.append(torch.get_num_threads())

        with one_thread():
            assert torch.get_num_threads() == 1
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            with one_thread():
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
        assert found == [2]

    def test_is_taken_back_after_an_error(self):
        with pytest.raises(LookupError), one_thread():
            raise LookupError
        assert torch.get_num_threads() == 2

    @pytest.mark.parametrize(("width", "threads"), [(8, 1), (800, 2)])
    def test_is_for_small_steps_and_not_for_callbacks(self, width, threads):
        network = MixtureNetwork.of(2, 2, n_components=2, width=width, generator=Generator())
        steps, callbacks = set(), set()
        network.backbone.register_forward_hook(lambda *_: steps.add(torch.get_num_threads()))
        settings = Settings(epochs=1, batch_size=20)
        train(network, (X, Y), settings, callbacks=lambda _: callbacks.add(torch.get_num_threads()))
        assert (steps, callbacks) == ({threads}, {2})

    def test_the_bytes_of_a_small_fit_are_those_of_any_number(self):
        found = fit("dropout", 0)
        torch.set_num_threads(1)
        expected = fit("dropout", 0)
        torch.set_num_threads(2)
        assert found == expected
