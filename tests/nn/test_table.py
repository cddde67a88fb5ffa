"""Tables in networks: embeddings against their definition, codes left alone, shifts learnt."""

import json

import pytest
import torch
from torch.testing import assert_close

from condens.data import Rows
from condens.errors import ArgumentError, ShapeError
from condens.nn import MLP, Ensemble, MixtureNetwork, Standardiser, TableMLP
from condens.nn.backbones import backbone_from_dict, embedding_size
from condens.nn.randomness import RowDraws
from condens.training import Settings, train
from condens.training.batches import Noise
from condens.training.run_directory import identity
from condens.training.sources import RowsInMemory


def rows(count, numeric, categories, seed=0):
    """Return numbers and codes, unknown ones among them."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, numeric, generator=generator, dtype=torch.float64)
    codes = [torch.randint(size, (count, 1), generator=generator) for size in categories]
    return torch.cat([numbers, *codes], 1)


@pytest.mark.parametrize(("numeric", "categories"), [(3, [4, 2]), (0, [5]), (2, [200])])
def test_is_the_mlp_of_numbers_and_vectors(numeric, categories):
    network = TableMLP(numeric, categories, 8, 2).double()
    condition = rows(50, numeric, categories)
    condition[0, numeric:] = 0.0
    expected = []
    for row in condition:
        vectors = [row[:numeric]]
        for code, table in zip(row[numeric:].int().tolist(), network.embeddings, strict=True):
            vectors.append(table[code - 1] if code else table.sum(0) / len(table))
        expected.append(network.mlp(torch.cat(vectors).unsqueeze(0)))
    assert_close(network(condition), torch.cat(expected), rtol=1e-12, atol=1e-12)
    assert network.features == 8


def test_unknown_has_no_weights_of_its_own():
    network = TableMLP(1, [4])
    assert [list(table.shape) for table in network.embeddings] == [[3, embedding_size(3)]]


def test_vectors_grow_with_the_categories():
    sizes = [embedding_size(n) for n in (1, 2, 5, 20, 61, 62, 1000)]
    # 1.6 · (1, 1.47, 2.46, 5.35, 9.99, 10.08, 47.9), rounded up, at most 16.
    assert sizes == [2, 3, 4, 9, 16, 16, 16]


def test_the_first_vectors_are_small():
    table = TableMLP(1, [1001]).embeddings[0]
    # 16000 numbers: five standard deviations are 0.003.
    assert table.std().item() == pytest.approx(0.1, abs=0.003)


def test_to_dict_makes_the_same_form():
    network = TableMLP(2, (4, 3), 8, 3, activation="tanh", normalise=True, dropout=0.2)
    given = json.loads(json.dumps(network.to_dict()))
    twin = backbone_from_dict(given)
    twin.load_state_dict(network.state_dict())
    condition = rows(20, 2, (4, 3)).float()
    assert torch.equal(twin.eval()(condition), network.eval()(condition))
    assert twin.to_dict() == network.to_dict()
    assert given["kind"] == TableMLP.kind == "table"


ENCODE = "Encode tables with the encoder that the network was made for."


@pytest.mark.parametrize("code", ["4", "-1", "1.5", "nan", "inf", "1e+20"])
def test_codes_that_are_none_are_named(code):
    condition = torch.tensor([[0.0, 3.0, 1.0], [0.0, float(code), 1.0]])
    with pytest.raises(ArgumentError) as raised:
        TableMLP(1, [4, 2])(condition)
    assert str(raised.value) == (
        f"condition has the code {code} in column 1, but a whole number from 0 to 3 was expected. "
        f"{ENCODE}"
    )


def test_each_column_has_its_own_codes():
    with pytest.raises(ArgumentError, match="code 3 in column 2, but a whole number from 0 to 1"):
        TableMLP(1, [4, 2])(torch.tensor([[0.0, 3.0, 3.0]]))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: TableMLP(-1, [2]),
            ArgumentError,
            "numeric is -1, but at least 0 was expected. Pass the number of numeric columns.",
        ),
        (
            lambda: TableMLP(1, []),
            ArgumentError,
            "categories is [], but the number of codes of every column was expected. Count unknown "
            "as one, or use an MLP where there are no categories.",
        ),
        (
            lambda: TableMLP(1, [3, 1]),
            ArgumentError,
            "categories is 1, but at least 2 was expected. Count unknown as one, or use an MLP "
            "where there are no categories.",
        ),
        (
            lambda: TableMLP(1, [3])(torch.zeros(5, 3)),
            ShapeError,
            "condition has shape [5, 3], but [5, 2] was expected. Pass the columns of numbers, "
            "then those of codes.",
        ),
        (
            lambda: TableMLP(1, [300]).bfloat16()(torch.zeros(5, 2, dtype=torch.bfloat16)),
            ArgumentError,
            "condition is torch.bfloat16, but it cannot tell 300 categories apart. Use a network "
            "in float32.",
        ),
        (
            lambda: MixtureNetwork(
                TableMLP(1, [3]), head(), condition_columns=2, condition_codes=3
            ),
            ArgumentError,
            "condition_codes is 3, but at most 2 was expected. Pass how many of the "
            "condition_columns, at their end, are codes.",
        ),
        (
            lambda: Ensemble([MixtureNetwork.of(2, 1), MixtureNetwork.of(2, 1, categories=[3])]),
            ArgumentError,
            "members have condition_codes [0, 1], but the same were expected. Make all members "
            "with the same condition_codes.",
        ),
    ],
)
def test_what_does_not_fit_is_named(make, error, text):
    with pytest.raises(error) as raised:
        make()
    assert type(raised.value) is error
    assert str(raised.value) == text


def head():
    return MixtureNetwork.of(2, 1).head


class TestCodes:
    def test_are_not_scaled(self):
        values = torch.tensor([[1.0, 5.0, 1.0], [3.0, 5.0, 9.0], [8.0, 2.0, 1.0]])
        scaling, free = Standardiser(3, fixed=2).fit(values), Standardiser(3).fit(values)
        assert torch.equal(scaling(values)[:, 1:], values[:, 1:].double())
        assert torch.equal(scaling(values)[:, 0], free(values)[:, 0])
        assert scaling.state_dict().keys() == free.state_dict().keys()

    @pytest.mark.parametrize("several", [False, True])
    def test_reach_the_backbone_as_they_are(self, several):
        def make():
            return MixtureNetwork.of(3, 1, n_components=2, width=8, categories=[4, 6])

        network = Ensemble([make(), make()]) if several else make()
        condition = rows(40, 1, [4, 6])
        network.prepare(condition, condition[:, :1])
        assert torch.equal(
            network.standardise_condition(condition)[:, 1:], condition[:, 1:].float()
        )

    def test_get_no_noise(self):
        torch.manual_seed(0)
        data = Rows(rows(5000, 2, [4, 6]), torch.zeros(5000, 1))
        noise = Noise(Settings(condition_noise=0.5), 5000, 3, codes=2)
        draws = RowDraws([0])
        draws.begin(epoch=0, first=0, rows=5000)
        draws.choose(0)
        noisy = noise.add(data, draws)
        assert torch.equal(noisy.condition[:, 2:], data.condition[:, 2:])
        change = noisy.condition[:, :2] - data.condition[:, :2]
        assert change.std().item() == pytest.approx(0.5, rel=0.05)
        assert torch.equal(data.condition, rows(5000, 2, [4, 6]))

    def test_do_not_count_in_the_rule_for_noise(self):
        data = Rows(rows(100, 2, [4, 6]), torch.zeros(100, 1))
        settings = Settings(condition_noise="rule", validation_fraction=0.0)
        network = MixtureNetwork.of(4, 1, categories=[4, 6])
        noise = RowsInMemory(data, None, None, settings, 1).noise(settings, network)
        assert noise.condition == pytest.approx(1.06 * 100 ** (-1 / 7))

    def test_are_part_of_what_a_run_is(self):
        forms = [
            identity(
                MixtureNetwork(MLP(3), head(), condition_columns=3, condition_codes=codes),
                Settings(),
                "digest",
            )["network"]
            for codes in (0, 1)
        ]
        changed = {"condition_codes": "1", "condition_scaling.free": "2"}
        assert forms[1] == forms[0] | changed != forms[0]

    def test_none_is_the_network_as_ever(self):
        assert isinstance(MixtureNetwork.of(3, 1).backbone, MLP)
        assert MixtureNetwork.of(3, 1).condition_codes == 0


def shifted(count=1500):
    """Return y = x + (−2, 0, 3)[category] + noise of scale 0.3."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 1, generator=generator)
    code = torch.randint(1, 4, (count, 1), generator=generator)
    shift = torch.tensor([0.0, -2.0, 0.0, 3.0])[code]
    return torch.cat([x, code], 1), x + shift + 0.3 * torch.randn(count, 1, generator=generator)


def test_a_shift_by_category_is_learnt_and_an_unknown_one_lies_between():
    torch.manual_seed(0)
    network = MixtureNetwork.of(2, 1, n_components=1, width=32, categories=[4])
    settings = Settings(epochs=25, learning_rate=5e-3, condition_noise=0.02)
    train(network, shifted(), settings, progress=False)
    found = network(torch.tensor([[0.5, 0.0], [0.5, 1.0], [0.5, 2.0], [0.5, 3.0]]))
    unknown, *known = found.mean.flatten().tolist()
    # 500 rows a category: a mean is known to 0.013.
    assert known == pytest.approx([-1.5, 0.5, 3.5], abs=0.15)
    assert -1.5 < unknown < 3.5
    assert found.stddev[1:].flatten().tolist() == pytest.approx([0.3] * 3, abs=0.05)
    assert found.stddev.isfinite().all()


def test_a_run_that_stopped_goes_on_as_if_it_had_not(tmp_path):
    def stop(epoch):
        raise InterruptedError

    def run(directory, callback=None):
        torch.manual_seed(0)
        network = MixtureNetwork.of(2, 1, n_components=2, width=8, categories=[4])
        settings = Settings(epochs=3, condition_noise=0.1)
        options = {"directory": directory, "checkpoint_seconds": 0.0, "progress": False}
        train(network, shifted(300), settings, callbacks=callback, **options)
        return network.state_dict()

    with pytest.raises(InterruptedError):
        run(tmp_path / "stopped", stop)
    resumed, whole = run(tmp_path / "stopped"), run(tmp_path / "whole")
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())
