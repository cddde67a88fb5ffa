"""ONNX files answer in onnxruntime as the networks do in torch."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from condens import GaussianMixture
from condens.errors import ArgumentError, ModelFileError
from condens.functional import triangular
from condens.integrations.onnx import (
    GRAPHS,
    LogDensity,
    MixtureParameters,
    Sampler,
    check_agreement,
    export,
    trial_inputs,
)
from condens.nn import Ensemble, MixtureNetwork
from condens.training import Settings, adjust
from condens.transforms import Integer, Interval, Positive, Real

C = 3


def SLOW(name):  # noqa: N802
    return pytest.param(name, marks=pytest.mark.slow)


def SLOW_PAIR(name, what):  # noqa: N802
    return pytest.param(name, what, marks=pytest.mark.slow)


def network_of(
    targets,
    covariance,
    n_components,
    *,
    seed=0,
    dtype=torch.float32,
    transforms=None,
    loc=None,
    width=16,
):
    """Return a network whose outputs vary much with the condition, with units other than one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MixtureNetwork.of(
            C,
            targets,
            n_components=n_components,
            covariance=covariance,
            width=width,
            transforms=transforms,
        )
        with torch.no_grad():
            network.head.linear.weight.mul_(10)
            network.head.linear.bias.normal_()
        network.target_scaling.scale.uniform_(0.5, 3.0)
        network.target_scaling.location.normal_()
        network.condition_scaling.scale.uniform_(0.5, 3.0)
        network.condition_scaling.location.normal_()
        if loc is not None:
            network.target_scaling.location.fill_(loc)
            network.condition_scaling.location.fill_(loc)
    return network.to(dtype).eval()


def bounded(network, width=2.0):
    """Give a network, and its members, a training range of so many deviations on both sides."""
    for one in [network, *getattr(network, "members", [])]:
        scaling = one.condition_scaling
        scaling.lower.copy_(scaling.location - width * scaling.scale)
        scaling.upper.copy_(scaling.location + width * scaling.scale)
    return network


# Some know the range of their training rows, others do not: an export takes seconds, so that the
# tests inside a range and those beyond share one.
NETWORKS = {
    "full": lambda: bounded(network_of(3, "full", 4)),
    "diagonal": lambda: network_of(3, "diagonal", 4),
    "isotropic": lambda: bounded(network_of(2, "isotropic", 3)),
    "tied": lambda: network_of(3, "tied", 2),
    "one": lambda: network_of(1, "full", 1),
    "years": lambda: network_of(2, "full", 3, dtype=torch.float64, loc=1.7e9),
    "transforms": lambda: bounded(
        network_of(
            4,
            "full",
            2,
            dtype=torch.float64,
            transforms=[
                Positive(0.1),
                Interval(-0.3, 0.7),
                Real(),
                Interval(0.0, 2.0, link="logit"),
            ],
        )
    ),
    "ensemble": lambda: bounded(ensemble()),
}


def ensemble():
    members = [network_of(2, s, 2, seed=i) for i, s in enumerate(("full", "diagonal", "tied"))]
    joined = Ensemble(members)
    for scaling in (joined.target_scaling, joined.condition_scaling):
        scaling.location.fill_(0.7)
        scaling.scale.fill_(1.9)
    return joined.eval()


class Written:
    """A network, its file, which another process may have written, and a session on it."""

    def __init__(self, network, path, what):
        if not path.exists():
            export(network, path, what)
        self.network, self.path = network, path
        self.session = onnxruntime.InferenceSession(path)
        self.names = [i.name for i in self.session.get_inputs()]

    def __call__(self, *inputs):
        given = {n: x.numpy() for n, x in zip(self.names, inputs, strict=True)}
        return [torch.as_tensor(out) for out in self.session.run(None, given)]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    # Of one run of the tests, whichever of its processes asks.
    here = tmp_path_factory.getbasetemp()
    place, made = here.parent / "onnx" if "PYTEST_XDIST_WORKER" in os.environ else here / "onnx", {}
    place.mkdir(exist_ok=True)

    def get(name, what):
        if (name, what) not in made:
            path = place / f"{name}-{what}.onnx"
            made[name, what] = Written(NETWORKS[name](), path, what)
        return made[name, what]

    return get


def conditions(network, rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    scaling = network.condition_scaling
    noise = torch.randn(rows, C, dtype=torch.float64, generator=generator)
    return (scaling.location + scaling.scale * noise).to(network.dtype)


def agree(ours, theirs, dtype):
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def near(ours, theirs, name):
    """Compare in original units: dates as exactly as double precision allows beside the offset."""
    if name == "years":
        torch.testing.assert_close(ours - 1.7e9, theirs - 1.7e9, rtol=0, atol=1e-6)
    else:
        agree(ours, theirs, ours.dtype)


# A file takes seconds to write: the fast tests share a few of them.
COVARIANCES = [
    SLOW("full"),
    SLOW("one"),
    SLOW("ensemble"),
    SLOW("diagonal"),
    SLOW("isotropic"),
    SLOW("tied"),
]


def adjusted():
    """Return a network with a limit, a spread and a tail, over a real and a positive target."""
    network = bounded(network_of(2, "full", 3, transforms=[Real(), Positive()]))
    x = conditions(network, 100)
    target = network(x).sample(generator=torch.Generator().manual_seed(5))
    adjust(network, None, Settings(limit=0.2, spread=0.8, tail=0.01), training=(x, target))
    return network


@pytest.mark.parametrize("what", [SLOW(what) for what in GRAPHS])
def test_limit_spread_and_tail(what, tmp_path):
    network = adjusted()
    export(network, tmp_path / "file.onnx", what)
    written, x = Written(network, tmp_path / "file.onnx", what), conditions(network, 5)
    x[-1] += 1e3
    with torch.no_grad():
        if what == "log_density":
            target = torch.tensor([[0.0, 1.0], [1e6, 1.0], [0.0, 1e6], [1.0, 1e-20], [-1e3, 5.0]])
            agree(written(x, target)[0], -network.nll(x, target), torch.float32)
            assert -network.nll(x, target).min() < 200
        elif what == "mixture":
            logits, means, factors = written(x)
            assert logits.shape == (5, 3 + 11)
            base = network(x).base
            agree(logits.exp(), base.weights, torch.float32)
            agree(means[:, :3], base.means[:, :3], torch.float32)
            torch.testing.assert_close(means, base.means, rtol=1e-4, atol=1e-4)
            agree(factors, base.factors, torch.float32)
        else:
            noise = torch.randn(4, 5, 2, generator=torch.Generator().manual_seed(0))
            drawn = written(x, noise, torch.full((4, 5), 0.9999999))[0]
            # The last component of the body, not of the tail.
            base = network(x, tail=False).base
            real = base.means[:, -1] + triangular.unwhiten(noise, base.factors[:, -1])
            agree(drawn[..., 0], real[..., 0], torch.float32)


@pytest.mark.parametrize("name", [*COVARIANCES, SLOW("transforms")])
def test_log_density(written, name):
    file = written(name, "log_density")
    network = file.network
    for rows in (1, 7, 1000):
        condition = conditions(network, rows)
        with torch.no_grad():
            mixture = network(condition)
            target = mixture.sample(generator=torch.Generator().manual_seed(2))
            (ours,) = file(condition, target)
            assert ours.shape == (rows,)
            agree(ours, mixture.log_prob(target), network.dtype)


@pytest.mark.parametrize("name", COVARIANCES)
def test_far_tails(written, name):
    file = written(name, "log_density")
    condition = conditions(file.network, 50)
    with torch.no_grad():
        mixture = file.network(condition)
        away = 1e3 * mixture.variance.sqrt().max() * torch.tensor([1.0, -1.0]).repeat(25)
        target = mixture.mean + away.unsqueeze(-1)
        (ours,) = file(condition, target)
        theirs = mixture.log_prob(target)
    assert theirs.min() < -1e5
    agree(ours, theirs, torch.float32)


@pytest.mark.slow
def test_dates_in_seconds_keep_their_digits(written):
    file, offset = written("years", "log_density"), 1.7e9
    twin = network_of(2, "full", 3, dtype=torch.float64, loc=0.0)
    condition = conditions(file.network, 100)
    near = condition - offset  # exact, of two numbers so close
    with torch.no_grad():
        mixture = twin(near)
        target = mixture.sample(generator=torch.Generator().manual_seed(3)) + offset
        (ours,) = file(condition, target)
        agree(ours, mixture.log_prob(target - offset), torch.float64)
    with pytest.raises(ArgumentError, match=r"target would lose their digits.*dtype=torch.float64"):
        export(file.network, file.path, dtype=torch.float32)


@pytest.mark.slow
def test_not_numbers_and_infinity(written):
    file = written("full", "log_density")
    condition = conditions(file.network, 4)
    target = torch.zeros(4, 3)
    target[0, 1], target[1, 2], target[2, 0] = torch.nan, torch.inf, -torch.inf
    (ours,) = file(condition, target)
    assert ours[0].isnan()
    assert ours[1:3].isneginf().all()
    assert ours[3].isfinite()
    condition[3, 0] = torch.nan
    assert file(condition, target)[0][3].isnan()


@pytest.mark.slow
def test_outside_the_support(written):
    file = written("transforms", "log_density")
    condition = conditions(file.network, 5)
    inside = torch.tensor([1.0, 0.2, 0.0, 1.9], dtype=torch.float64)
    target = inside.repeat(5, 1)
    target[0, 0], target[1, 1], target[2, 1], target[3, 1] = 0.1, 0.7, -0.31, torch.nan
    (ours,) = file(condition, target)
    assert ours[:3].isneginf().all()
    assert ours[3].isnan()
    with torch.no_grad():
        agree(ours[4:], file.network(condition[4:]).log_prob(target[4:]), torch.float64)


@pytest.mark.parametrize(
    "name", [SLOW("isotropic"), SLOW("ensemble"), SLOW("years"), SLOW("transforms")]
)
def test_mixture(written, name):
    file = written(name, "mixture")
    for rows in (1, 7, 1000):
        condition = conditions(file.network, rows)
        with torch.no_grad():
            theirs = file.network(condition)
        theirs = getattr(theirs, "base", theirs)
        ours = GaussianMixture(*file(condition))
        agree(ours.logits, theirs.logits.log_softmax(-1), ours.dtype)
        near(ours.means, theirs.means, name)
        agree(ours.factors, theirs.factors, ours.dtype)


@pytest.mark.parametrize(
    "name", [SLOW("full"), SLOW("transforms"), SLOW("years"), SLOW("diagonal"), "one"]
)
def test_draws(written, name):
    file = written(name, "sample")
    dtype, dimensions = file.network.dtype, file.network.dimensions
    for rows, draws in ((1, 5), (7, 1), (1000, 3)):
        condition = conditions(file.network, rows)
        generator = torch.Generator().manual_seed(4)
        noise = torch.randn(draws, rows, dimensions, dtype=dtype, generator=generator)
        with torch.no_grad():
            mixture = file.network(condition)
        base = getattr(mixture, "base", mixture)
        component = torch.randint(base.n_components, (draws, rows), generator=generator)
        # Components that have next to no weight have next to no interval in [0, 1].
        component = torch.where(
            base.weights.mT[component, range(rows)] < 1e-4, base.logits.argmax(-1), component
        )
        upper = base.weights.cumsum(-1)[range(rows), component]
        uniform = upper - 0.5 * base.weights[range(rows), component]
        (ours,) = file(condition, noise, uniform)
        factors, means = base.factors[range(rows), component], base.means[range(rows), component]
        expected = means + triangular.unwhiten(noise.double(), factors.double()).to(dtype)
        if mixture is not base:
            expected = mixture._from_real(expected)
        near(ours, expected, name)


def test_the_ends_of_the_uniform_number_draw_the_first_and_last_component():
    network = network_of(2, "full", 3)
    condition = conditions(network, 2)
    ends = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    draws = Sampler(network)(condition, torch.zeros(2, 2, 2), ends)
    means = network(condition).means
    agree(draws, torch.stack([means[:, 0], means[:, -1]]), torch.float32)


@pytest.mark.slow
def test_draws_for_a_condition_that_is_no_number(written):
    file = written("transforms", "sample")
    condition = conditions(file.network, 2)
    condition[0, 0] = torch.nan
    (ours,) = file(condition, torch.zeros(1, 2, 4).double(), torch.full((1, 2), 0.5).double())
    assert ours[:, 0].isnan().all()
    assert ours[:, 1].isfinite().all()


@pytest.mark.slow
def test_scales_at_the_floor(tmp_path):
    network = network_of(2, "full", 2)
    with torch.no_grad():
        network.head.linear.weight.zero_()
        network.head.linear.bias[6:].copy_(torch.tensor([200.0, 200.0, 3.0, -20.0, 200.0, 0.5]))
    file = Written(network, tmp_path / "floor.onnx", "log_density")
    condition = conditions(network, 20)
    with torch.no_grad():
        mixture = network(condition)
        target = mixture.means[:, 0] + 1e-3 * torch.linspace(-3, 3, 20).unsqueeze(-1)
        (ours,) = file(condition, target)
        # In original units float32 rounds the means, by 1e-4 of scales as small as these.
        theirs = network(condition.double()).log_prob(target.double())
        agree(ours, theirs.float(), torch.float32)


def spread_out(network, seed=7):
    """Return conditions inside the training range and up to 10³⁰ widths of it beyond."""
    generator, scaling = torch.Generator().manual_seed(seed), network.condition_scaling
    size = 10 ** torch.linspace(-1, 30, 400, dtype=torch.float64).unsqueeze(-1)
    direction = torch.randn(400, C, dtype=torch.float64, generator=generator)
    return (scaling.location + scaling.scale * size * direction).to(network.dtype)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        SLOW_PAIR("full", "log_density"),
        SLOW_PAIR("ensemble", "log_density"),
        SLOW_PAIR("transforms", "log_density"),
        SLOW_PAIR("ensemble", "mixture"),
        SLOW_PAIR("isotropic", "mixture"),
        SLOW_PAIR("full", "sample"),
        SLOW_PAIR("tied", "mixture"),
        SLOW_PAIR("diagonal", "mixture"),
    ],
)
def test_far_outside_the_training_rows(written, name, what, tmp_path):
    if name in ("tied", "diagonal"):
        file = Written(bounded(NETWORKS[name]()), tmp_path / "far.onnx", what)
    else:
        file = written(name, what)
    network = file.network
    condition = spread_out(network)
    departure = network.condition_scaling.departure(network.standardise_condition(condition))
    assert (departure == 0).sum() > 10 < (departure == 1).sum()
    with torch.no_grad():
        mixture = network(condition)
        base = getattr(mixture, "base", mixture)
        if what == "log_density":
            target = mixture.sample(generator=torch.Generator().manual_seed(2))
            (ours,) = file(condition, target)
            assert ours.isfinite().all()
            agree(ours, mixture.log_prob(target), network.dtype)
        elif what == "mixture":
            ours = GaussianMixture(*file(condition))
            agree(ours.logits, base.logits.log_softmax(-1), network.dtype)
            agree(ours.means, base.means, network.dtype)
            agree(ours.factors, base.factors, network.dtype)
        else:
            uniform, noise = torch.zeros(1, 400), torch.ones(1, 400, network.dimensions)
            expected = base.means[:, 0] + triangular.unwhiten(noise[0], base.factors[:, 0])
            agree(file(condition, noise, uniform)[0][0], expected, network.dtype)


@pytest.mark.slow
def test_inside_the_range_bit_for_bit_as_without_one(written, tmp_path):
    held, free = written("isotropic", "mixture"), network_of(2, "isotropic", 3)
    files = [held, Written(free, tmp_path / "a.onnx", "mixture")]
    condition = conditions(held.network, 500)
    scaling = held.network.condition_scaling
    assert not scaling.outside(condition).any()
    assert ((condition < scaling.lower) | (condition > scaling.upper)).any()
    for one, other in zip(*(file(condition) for file in files), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("what", GRAPHS)
@pytest.mark.slow
def test_torch_export(what):
    network = network_of(3, "full", 2)
    graph = GRAPHS[what](network).eval()
    inputs = {
        "condition": conditions(network, 5),
        "target": torch.ones(5, 3),
        "noise": torch.ones(4, 5, 3),
        "uniform": torch.full((4, 5), 0.3),
    }
    given = tuple(inputs[name] for name in graph.inputs)
    program = torch.export.export(graph, given)
    torch.testing.assert_close(program.module()(*given), graph(*given))


def test_modules_answer_as_the_network_does():
    network = network_of(2, "tied", 3, dtype=torch.float64)
    condition = conditions(network, 6)
    mixture = network(condition)
    target = mixture.sample(generator=torch.Generator().manual_seed(5))
    agree(LogDensity(network)(condition, target), mixture.log_prob(target), torch.float64)
    ours = GaussianMixture(*MixtureParameters(network)(condition))
    agree(ours.covariance_matrix, mixture.covariance_matrix, torch.float64)


@pytest.mark.slow
def test_regressor(tmp_path):
    from condens import MDNRegressor
    from condens.training import Settings

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)) * [1.0, 50.0] + [0.0, 1.7e9]
    y = x[:, :1] + rng.normal(size=(200, 2))
    options = {"n_members": 1, "settings": Settings(epochs=2), "random_state": 0}
    model = MDNRegressor(n_components=2, shortcut=True, **options).fit(x, y)
    path = tmp_path / "model.onnx"
    export(model, path)
    (ours,) = onnxruntime.InferenceSession(path).run(None, {"condition": x, "target": y})
    np.testing.assert_allclose(ours, model.score_samples(x, y), rtol=1e-6)
    x[3, 0] = np.nan
    gaps = MDNRegressor(n_components=1, **options).fit(x, y)
    with pytest.raises(ArgumentError, match=r"with gaps.*model.encoder_.encode"):
        export(gaps, path)


@pytest.mark.slow
def test_columns_that_are_not_read(tmp_path):
    generator = torch.Generator().manual_seed(0)
    options = {"n_components": 2, "width": 8, "bins": 2, "shortcut": True, "unused": (1,)}
    x = 5 + torch.randn(50, 3, generator=generator, dtype=torch.float64)
    network = MixtureNetwork.of(3, 2, generator=generator, **options).double().prepare(x, x[:, :2])
    export(network.eval(), tmp_path / "n.onnx")
    x[:, 1] = 1e9
    given = {"condition": x.numpy(), "target": x[:, ::2].numpy()}
    (ours,) = onnxruntime.InferenceSession(tmp_path / "n.onnx").run(None, given)
    expected = -network.nll(x, x[:, ::2]).detach()
    np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_conditions_as_the_backbone_takes_them(tmp_path):
    head = network_of(2, "full", 2).head
    layers = torch.nn.Conv1d(2, 4, 3), torch.nn.Flatten(), torch.nn.Dropout(0.5)
    network = MixtureNetwork(torch.nn.Sequential(*layers), head)
    rows = torch.randn(9, 2, 6, generator=torch.Generator().manual_seed(6))
    export(network, tmp_path / "a.onnx", "mixture", condition=rows[:3])
    assert network.training
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    ours = GaussianMixture(*map(torch.as_tensor, session.run(None, {"condition": rows.numpy()})))
    with torch.no_grad():
        agree(ours.factors, network.eval()(rows).factors, torch.float32)


@pytest.mark.slow
def test_a_file_of_another_network_is_refused(written):
    file, other = written("isotropic", "mixture"), network_of(2, "isotropic", 3, seed=1)
    graph = MixtureParameters(other).eval()
    with pytest.raises(ArgumentError, match="model is written with logits off by"):
        check_agreement(file.path.read_bytes(), graph, trial_inputs(graph, None))


@pytest.mark.parametrize(
    ("name", "what", "change"),
    [
        ("one", "sample", 1e-4),
        pytest.param("full", "log_density", 1e-4, marks=pytest.mark.slow),
        pytest.param("transforms", "sample", 1e-8, marks=pytest.mark.slow),
        pytest.param("isotropic", "mixture", 1e-4, marks=pytest.mark.slow),
    ],
)
def test_a_small_change_of_means_and_factors_is_refused(written, name, what, change):
    """A file is compared with the network that it was not made from."""
    file, other = written(name, what), NETWORKS[name]()
    with torch.no_grad():
        other.head.linear.bias[other.head.n_components :].add_(change)
    graph = GRAPHS[what](other).eval()
    with pytest.raises(ArgumentError, match=r"model is written with .* off by"):
        check_agreement(file.path.read_bytes(), graph, trial_inputs(graph, None))


REFUSED = {
    "low_rank": (lambda: network_of(3, "low_rank", 2), "log_density", "low_rank"),
    "whole": (
        lambda: network_of(1, "full", 2, transforms=[Integer(0)]),
        "log_density",
        "whole numbers",
    ),
    "codes": (lambda: MixtureNetwork.of(3, 2, categories=[4]), "mixture", "codes of categories"),
    "what": (lambda: network_of(2, "full", 1), "density", "'log_density', 'mixture', 'sample'"),
    "other": (lambda: torch.nn.Linear(2, 2), "mixture", "model is Linear"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    make, what, text = REFUSED[name]
    with pytest.raises(ArgumentError, match=text):
        export(make(), tmp_path / "a.onnx", what)
    assert not list(tmp_path.iterdir())


def test_refused_arguments(tmp_path):
    network = network_of(1, "full", 1)
    with pytest.raises(ArgumentError, match="path is in no directory"):
        export(network, tmp_path / "none" / "a.onnx")
    with pytest.raises(ArgumentError, match="float32 or float64"):
        export(network, tmp_path / "a.onnx", dtype=torch.float16)
    plain = MixtureNetwork(network.backbone, network.head)
    with pytest.raises(ArgumentError, match="condition is missing"):
        export(plain, tmp_path / "a.onnx")


class Branching(torch.nn.Module):
    def forward(self, condition):
        return condition if condition.sum() > 0 else -condition


def test_a_backbone_that_cannot_be_written(tmp_path):
    head = network_of(1, "full", 1).head
    network = MixtureNetwork(
        torch.nn.Sequential(torch.nn.Linear(C, 16), Branching()), head, condition_columns=C
    )
    path = tmp_path / "a.onnx"
    path.write_bytes(b"before")
    with pytest.raises(ArgumentError, match="cannot be written as ONNX"):
        export(network, path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


def test_devices_directories_and_links_to_nothing_are_refused(tmp_path):
    network = network_of(2, "full", 2)
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "device").symlink_to("/dev/null")
    for place, words in (
        (tmp_path, "path is a directory"),
        (tmp_path / "link", "path is a link to nothing"),
        (tmp_path / "device", "path is a device"),
        (tmp_path / "none" / "x.onnx", "path is in no directory"),
    ):
        with pytest.raises(ArgumentError, match=words):
            export(network, place)
    assert Path("/dev/null").is_char_device()


@contextmanager
def file_size(limit):
    """Let no file of this process grow beyond so many bytes, as if the disk were full."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def small():
    """Return a network that is written quickly, and the options with which it is."""
    network = MixtureNetwork(torch.nn.Flatten(), network_of(1, "full", 1, width=4).head)
    return network, {"what": "mixture", "condition": torch.randn(2, 2, 2)}


@pytest.mark.skipif(sys.platform == "win32", reason="limits no sizes")
def test_a_full_disk_is_named_and_leaves_the_file_before(tmp_path):
    path = tmp_path / "a.onnx"
    path.write_bytes(b"before")
    network, options = small()
    with (
        file_size(1000),
        pytest.raises(ModelFileError, match=r"a.onnx: the file cannot be written .File too large."),
    ):
        export(network, path, **options)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


@pytest.mark.skipif(sys.platform != "linux", reason="has no such directory")
def test_a_place_that_nobody_may_write_is_named():
    network, options = small()
    with pytest.raises(ModelFileError, match=r"a.onnx: the file cannot be written .*Make room"):
        export(network, "/proc/a.onnx", **options)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["log_density", "sample"])
def test_one_component_is_never_left_out(what, tmp_path):
    x, y = torch.randn(2, 50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    network = MixtureNetwork.of(2, 2, n_components=1, width=8).double().eval()
    network.prepare(x, y)
    adjust(network, None, Settings(tail=0.01), training=(x, y))
    export(network, tmp_path / "one.onnx", what)
    assert (tmp_path / "one.onnx").exists()
