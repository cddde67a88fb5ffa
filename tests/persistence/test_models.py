"""A model comes back to the bit, whatever it is made of."""

import json

import pytest
import safetensors
import safetensors.torch
import torch
from helpers import model_files as files
from torch import nn
from torch.testing import assert_close

import condens
from condens.errors import ArgumentError, ModelFileError, NotFiniteError
from condens.nn import HEADS, MLP, Ensemble, FullHead, MixtureNetwork, Standardiser
from condens.nn.adjustment import Limit, Trim
from condens.persistence import load, network_from_dict, network_to_dict, save, write
from condens.training import Settings, train


def again(network, path, **options):
    """Save and load; hold the law that what is loaded is saved to the same bytes."""
    save(network, path)
    loaded = load(path, **options)
    second = path.with_name("second")
    save(loaded, second)
    assert second.read_bytes() == path.read_bytes()
    assert [file.name for file in sorted(path.parent.iterdir())] == sorted([path.name, "second"])
    return loaded


def assert_same(loaded, network):
    assert type(loaded) is type(network)
    assert repr(loaded) == repr(network)
    assert files.predictions(loaded) == files.predictions(network)
    assert loaded.names == network.names
    assert loaded.state_dict().keys() == network.state_dict().keys()
    for (name, ours), theirs in zip(
        loaded.state_dict().items(), network.state_dict().values(), strict=True
    ):
        assert ours.dtype == theirs.dtype, name
        assert torch.equal(ours, theirs), name
    assert not any(module.training for module in loaded.modules())
    tensors = [*loaded.parameters(), *loaded.buffers()]
    assert all(tensor.device.type == "cpu" for tensor in tensors)
    assert all(parameter.requires_grad for parameter in loaded.parameters())


def without_scaling(network):
    if isinstance(network, Ensemble):
        return Ensemble([without_scaling(member) for member in network.members])
    return MixtureNetwork(network.backbone, network.head, names=network.names)


class TestRoundTrip:
    @pytest.mark.parametrize("scaled", [True, False])
    @pytest.mark.parametrize("names", [None, ("größe", "a b")])
    @pytest.mark.parametrize("members", [1, 3])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("covariance", HEADS)
    def test_every_head(self, tmp_path, covariance, dtype, members, names, scaled):
        options = {"covariance": covariance, "names": names, "floor": 1 / 3}
        options |= {"rank": 2} if covariance == "low_rank" else {}
        network = files.small(**options)
        if members > 1:
            network = files.ensemble(count=members, **options)
        network = network.to(dtype)
        if not scaled:
            network = without_scaling(network).to(dtype).eval()
        assert_same(again(network, tmp_path / "model"), network)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("members", [1, 2])
    @pytest.mark.parametrize("as_module", [True, False])
    def test_custom_backbone(self, tmp_path, as_module, members, dtype):
        network = files.custom(names=["a", "b"])
        if members > 1:
            network = files.ensemble(files.custom, members, names=["a", "b"])
        network = network.to(dtype).eval()
        backbone = files.Convolution() if as_module else files.Convolution
        loaded = again(network, tmp_path / "model", backbone=backbone)
        assert_same(loaded, network)
        parts = loaded.members if members > 1 else [loaded]
        assert len({id(part.backbone) for part in parts}) == members
        assert all(part.backbone.tied.weight is part.backbone.again.weight for part in parts)
        assert all(part.backbone is not backbone for part in parts)

    @pytest.mark.parametrize(
        "options",
        [
            {"normalise": True, "depth": 3},
            {"dropout": 0.25, "depth": 3},
            {"bins": 4},
            {"depth": 1, "width": 1},
            {"floor": 0},
            {"floor": 1e-30},
            {"ceiling": None},
            {"ceiling": 1e30},
            {"n_components": 1},
        ],
        ids=str,
    )
    def test_options(self, tmp_path, options):
        network = files.small(**options)
        loaded = again(network, tmp_path / "model")
        assert_same(loaded, network)
        assert loaded.head.floor == network.head.floor
        assert loaded.head.ceiling == network.head.ceiling

    @pytest.mark.parametrize("activation", ["silu", "relu", "tanh", "gelu"])
    def test_activation(self, tmp_path, activation):
        backbone = MLP(3, 4, activation=activation)
        network = files.prepared(MixtureNetwork(backbone, FullHead(4, 1, 2), condition_columns=3))
        assert_same(again(network, tmp_path / "model"), network)

    def test_a_layer_that_was_exchanged_is_not_forgotten(self, tmp_path):
        network = files.small()
        network.backbone.layers[1] = nn.ReLU()
        save(network, tmp_path / "model")
        with pytest.raises(ModelFileError, match="Pass backbone="):
            load(tmp_path / "model")
        assert_same(load(tmp_path / "model", backbone=network.backbone), network)

    def test_mixed_precision_backbone(self, tmp_path):
        class Half(nn.Linear):
            def forward(self, x):
                return super().forward(x.to(self.weight.dtype))

        network = MixtureNetwork(Half(3, 4).bfloat16(), FullHead(4, 2, 2).double())
        loaded = again(network.eval(), tmp_path / "model", backbone=lambda: Half(3, 4))
        assert_same(loaded, network)

    def test_mixed_members(self, tmp_path):
        network = files.prepared(Ensemble([files.small(width=3), files.small(n_components=5)]))
        assert_same(again(network, tmp_path / "model"), network)

    def test_scales_of_every_size(self, tmp_path):
        network = files.small()
        network.target_scaling.scale.copy_(torch.tensor([5e-324, 1e300], dtype=torch.float64))
        network.target_scaling.location.copy_(torch.tensor([-0.0, -1.7e308], dtype=torch.float64))
        loaded = again(network, tmp_path / "model")
        for name in ("scale", "location"):
            ours, theirs = (getattr(n.target_scaling, name) for n in (loaded, network))
            assert ours.numpy().tobytes() == theirs.numpy().tobytes()

    def test_training_mode_is_not_saved(self, tmp_path):
        network = files.small(dropout=0.5)
        save(network, tmp_path / "one")
        save(network.train(), tmp_path / "two")
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()

    def test_draws_nothing(self, tmp_path):
        state = torch.get_rng_state()
        network = files.small()
        torch.set_rng_state(state)
        save(network, tmp_path / "model")
        load(tmp_path / "model")
        assert torch.equal(torch.get_rng_state(), state)

    def test_under_another_default_device_and_dtype(self, tmp_path):
        network = files.small()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"):
                loaded = again(network, tmp_path / "model")
        finally:
            torch.set_default_dtype(torch.float32)
        assert_same(loaded, network)

    @pytest.mark.parametrize("members", [1, 2])
    def test_can_be_trained_further_like_the_one_saved(self, tmp_path, members):
        network = files.small() if members == 1 else files.ensemble()
        loaded = again(network, tmp_path / "model")
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(300, 3, generator=generator)
        y = x[:, :2] + 0.1 * torch.randn(300, 2, generator=generator)
        before = files.predictions(network)
        for each in (network, loaded):
            train(each, (x, y), settings=Settings(epochs=3, seed=1))
            each.eval()
        assert files.predictions(network) != before
        assert files.predictions(loaded) == files.predictions(network)

    def test_the_loaded_shares_no_memory(self, tmp_path):
        network = files.small()
        loaded = again(network, tmp_path / "model")
        before = files.predictions(network)
        with torch.no_grad():
            for tensor in loaded.state_dict().values():
                tensor.zero_()
        assert files.predictions(network) == before
        assert_same(load(tmp_path / "model"), network)


class TestFile:
    def test_other_readers_open_it(self, tmp_path):
        network = files.small()
        save(network, tmp_path / "model", training={"epochs": 3})
        found = safetensors.torch.load_file(tmp_path / "model")
        assert found.keys() == network.state_dict().keys()
        for name, tensor in network.state_dict().items():
            assert torch.equal(found[name], tensor)
        with safetensors.safe_open(tmp_path / "model", "pt") as file:
            metadata = file.metadata()
        assert metadata.keys() == {"condens"}
        record = json.loads(metadata["condens"])
        assert record.pop("sha256")
        assert record == {
            "format": 9,
            "versions": {"condens": condens.__version__, "torch": torch.__version__},
            "document": {
                "kind": "network",
                "training": {"epochs": 3},
                "network": {
                    "kind": "mixture",
                    "backbone": {
                        "kind": "mlp",
                        "inputs": 3,
                        "width": 4,
                        "depth": 2,
                        "activation": "silu",
                        "normalise": False,
                        "dropout": 0.0,
                        "bins": 0,
                        "shortcut": False,
                    },
                    "head": {
                        "covariance": "full",
                        "features": 4,
                        "dimensions": 2,
                        "n_components": 2,
                        "floor": 1e-5,
                        "ceiling": 1e4,
                    },
                    "condition_columns": 3,
                    "condition_codes": 0,
                    "unused": [],
                    "transforms": None,
                    "dtype": "float32",
                    "names": ["lat", "größe"],
                    "adjustment": [],
                },
            },
        }

    def test_one_that_another_program_wrote_again(self, tmp_path):
        network = files.small()
        save(network, tmp_path / "model")
        with safetensors.safe_open(tmp_path / "model", "pt") as file:
            tensors = {name: file.get_tensor(name) for name in reversed(list(file.keys()))}
            safetensors.torch.save_file(tensors, tmp_path / "copy", file.metadata())
        assert_same(load(tmp_path / "copy"), network)

    def test_the_hash_is_the_documented_one(self, tmp_path):
        network = files.small()
        save(network, tmp_path / "model")
        data = (tmp_path / "model").read_bytes()
        made = files.sealed(*files.arrays(data))
        assert files.split(made)[0] == files.split(data)[0]
        (tmp_path / "made").write_bytes(made)
        assert_same(load(tmp_path / "made"), network)


class TestPrefix:
    def test_a_network_inside_another_document(self):
        network, other = files.small(), files.small(width=6, n_components=3)
        tensors = {
            **network.state_dict(prefix="first."),
            **other.state_dict(prefix="second."),
            "loose": torch.ones(2),
        }
        for prefix, each in (("first.", network), ("second.", other)):
            assert_same(network_from_dict(network_to_dict(each), tensors, prefix=prefix), each)


class TestRefusedModels:
    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("name", ["head.linear.bias", "target_scaling.location"])
    def test_not_finite(self, tmp_path, name, value):
        network = files.small()
        network.state_dict()[name][1] = value
        (tmp_path / "model").write_bytes(b"before")
        with pytest.raises(NotFiniteError) as raised:
            save(network, tmp_path / "model")
        assert str(raised.value) == (
            f"{name} holds NaN or infinity, but a model is saved with finite numbers. Train again "
            "from finite weights; keep masks out of the state (persistent=False)."
        )
        assert [f.read_bytes() for f in tmp_path.iterdir()] == [b"before"]

    @pytest.mark.parametrize("value", [0.0, -1.0])
    def test_scale(self, tmp_path, value):
        network = files.small()
        network.target_scaling.scale[1] = value
        with pytest.raises(ArgumentError, match=r"^target_scaling.scale is not above zero, but"):
            save(network, tmp_path / "model")

    @pytest.mark.parametrize("value", [0.0, -1.0])
    def test_limit(self, tmp_path, value):
        network = files.small()
        for limit, reason in (
            (Limit(1.0, torch.tensor([value, 1.0])), "distances are"),
            (Limit(value, torch.ones(2)), "it multiplies deviations"),
        ):
            network.limit = limit
            with pytest.raises(ArgumentError, match=rf"^limit is not above zero, but {reason}"):
                save(network, tmp_path / "model")

    @pytest.mark.parametrize("value", [0.0, -1.0, 1.0])
    def test_trim(self, tmp_path, value):
        network = files.small()
        network.trim = Trim(value)
        with pytest.raises(ArgumentError, match=r"^trim has no weight between 0 and 1, but it is"):
            save(network, tmp_path / "model")

    def test_classes_that_condens_does_not_know(self, tmp_path):
        class Head(FullHead):
            pass

        class Network(MixtureNetwork):
            pass

        class Many(Ensemble):
            pass

        network = files.small()
        for model, text in (
            (MixtureNetwork(MLP(3, 4), Head(4, 2)), "head is Head, but one of full, diagonal"),
            (Network(network.backbone, network.head), "model is Network, but a MixtureNetwork or"),
            (Many([network]), "model is Many, but a MixtureNetwork or"),
            (nn.Linear(2, 2), "network is Linear, but a network of condens.nn was expected. Pass"),
            (None, "network is NoneType, but a network of condens.nn was expected. Pass"),
        ):
            with pytest.raises(ArgumentError, match=f"^{text}"):
                save(model, tmp_path / "model")
        assert not list(tmp_path.iterdir())

    def test_networks_that_were_changed(self, tmp_path):
        for change, text in (
            (lambda n: setattr(n.head, "linear", nn.Linear(4, 9)), "head.linear.bias.* has shape"),
            (lambda n: n.head.double(), "has shape .* and torch.float32, but"),
            (lambda n: n.register_buffer("more", torch.ones(1)), "'more' is there, but the"),
            (lambda n: setattr(n, "names", ("a",)), "names is .*2 distinct name"),
        ):
            network = files.small()
            change(network)
            with pytest.raises(ArgumentError, match=text):
                save(network, tmp_path / "model")
        assert not list(tmp_path.iterdir())

    def test_state_that_is_no_tensor(self, tmp_path):
        class Extra(nn.Linear):
            def get_extra_state(self):
                return {"a": 1}

        network = MixtureNetwork(Extra(3, 4), FullHead(4, 2))
        with pytest.raises(ArgumentError, match=r"^backbone\._extra_state is dict, but a file"):
            save(network, tmp_path / "model")

    @pytest.mark.parametrize(
        "value", [{"a": float("nan")}, {"a": {1, 2}}, {"a": 1, 2: 3}, {"a": torch.ones(2)}], ids=str
    )
    def test_training_that_is_no_json(self, tmp_path, value):
        with pytest.raises(ArgumentError, match=r"^document cannot be JSON \(.*\), but a file"):
            save(files.small(), tmp_path / "model", training=value)

    def test_training_too_deep_or_too_large(self, tmp_path):
        deep = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(ArgumentError, match="is nested deeper than 32 levels"):
            save(files.small(), tmp_path / "model", training={"a": deep})
        with pytest.raises(ArgumentError, match="document is too large"):
            save(files.small(), tmp_path / "model", training={"a": "x" * 2**24})
        assert not list(tmp_path.iterdir())
        while deep:
            deep = deep[0]


class TestBackbone:
    def test_is_asked_for(self, tmp_path):
        save(files.custom(), tmp_path / "model")
        with pytest.raises(ModelFileError) as raised:
            load(tmp_path / "model")
        assert str(raised.value) == (
            f"{tmp_path / 'model'}: its backbone is not one of condens, but a file holds only its "
            "weights. Pass backbone=, a function that makes one like it."
        )

    def test_that_is_not_needed(self, tmp_path):
        save(files.small(), tmp_path / "model")
        with pytest.raises(ArgumentError, match=r"^backbone was given, but the file describes its"):
            load(tmp_path / "model", backbone=files.Convolution)

    @pytest.mark.parametrize("backbone", [3, lambda: 3], ids=["number", "function"])
    def test_that_is_no_module(self, tmp_path, backbone):
        save(files.custom(), tmp_path / "model")
        with pytest.raises(ArgumentError, match=r"^backbone gives int, but a torch.nn.Module was"):
            load(tmp_path / "model", backbone=backbone)

    def test_of_other_shapes(self, tmp_path):
        save(MixtureNetwork(nn.Linear(3, 4), FullHead(4, 2)), tmp_path / "model")
        for backbone, text in (
            (nn.Linear(3, 5), r"'backbone.bias' has shape \[4\] and .*, but \[5\]"),
            (nn.Linear(3, 4, bias=False), "'backbone.bias' is there, but the architecture has no"),
            (nn.Sequential(nn.Linear(3, 4)), "'backbone.0.bias' is missing, but the architecture"),
        ):
            with pytest.raises(ModelFileError, match=text):
                load(tmp_path / "model", backbone=backbone)

    def test_that_shares_what_the_saved_one_does_not(self, tmp_path):
        backbone = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        save(MixtureNetwork(backbone, FullHead(3, 2)), tmp_path / "model")
        shared = nn.Sequential(*[nn.Linear(3, 3)] * 2)
        with pytest.raises(ModelFileError, match="has a value of its own, but the given backbone"):
            load(tmp_path / "model", backbone=shared)


class TestOtherKinds:
    def test_are_refused_with_the_door_that_opens_them(self, tmp_path):
        for kind in ("regressor", "toy", None, ["network"]):
            write(tmp_path / "model", {"kind": kind}, {})
            with pytest.raises(ModelFileError) as raised:
                load(tmp_path / "model")
            assert str(raised.value) == (
                f"{tmp_path / 'model'}: its kind is {kind!r}, but a network was expected. Open it "
                "with condens.load."
            )


def test_standardiser_stays_in_double_precision(tmp_path):
    loaded = again(files.small().half(), tmp_path / "model")
    assert loaded.dtype == torch.float16
    scalings = [m for m in loaded.modules() if isinstance(m, Standardiser)]
    assert [s.scale.dtype for s in scalings] == [torch.float64] * 2
    assert_close(scalings[1].scale, files.small().target_scaling.scale, rtol=0, atol=0)
