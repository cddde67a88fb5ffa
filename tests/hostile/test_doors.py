"""Every door refuses by name what it cannot use, and takes what has one reading."""

import copy
import itertools
import json
import math
import warnings
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.search import Refused, Wrong, finite, near, need, no_nan, property_of, refused
from torch import nn

from condens import GaussianMixture, LowRankMixture, MDNRegressor, TransformedMixture
from condens.errors import CondensError, NoClosedFormError
from condens.inference import posterior
from condens.nn import HEADS, MLP, FullHead, MixtureNetwork
from condens.training import Settings, train
from condens.transforms import Integer, Interval, Positive, Real

pytestmark = pytest.mark.slow
mpl.use("Agg")


def gaussian(d, batch=(), k=2, dim=2, **options):
    t = dim * (dim + 1) // 2
    return GaussianMixture(
        d.normal(*batch, k), d.normal(*batch, k, dim), 0.4 * d.normal(*batch, k, t), **options
    )


def any_mixture(d, batch=(), dim=2):
    """Return a mixture of any kind."""
    kind = d.choice("mixture", ["gaussian", "low rank", "positive", "count", "interval"])
    base = gaussian(d, batch, dim=dim)
    if kind == "gaussian":
        return base
    if kind == "low rank":
        return LowRankMixture(base.logits, base.means, 0.3 * d.normal(*batch, 2, dim),
                              d.normal(*batch, 2, dim, 1))  # fmt: skip
    own = {"positive": Positive(), "count": Integer(0), "interval": Interval(-2.0, 3.0)}[kind]
    return TransformedMixture(base, [own, *[Real()] * (dim - 1)])


@property_of(400)
def test_one_dimensional_values_have_one_reading(d):
    """A value whose shape has one reading is taken; one with none is refused."""
    batch = d.choice("batch", [(), (1,), (3,), (5,), (2, 3), (1, 4), (3, 1)])
    shape = tuple(d.choice("axes", [[], [1], [3], [5], [7], [3, 1], [1, 3], [2, 3], [2, 3, 1],
                                    [7, 1], [7, 3], [7, 1, 1], [4], [4, 1], [7, 5, 1]]))  # fmt: skip
    kind = d.choice("kind", ["gaussian", "positive", "low rank"])
    base = gaussian(d, batch, dim=1)
    mixture = base
    if kind == "positive":
        mixture = TransformedMixture(base, [Positive()])
    elif kind == "low rank":
        mixture = LowRankMixture(base.logits, base.means, 0.3 * d.normal(*batch, 2, 1),
                                 d.normal(*batch, 2, 1, 1))  # fmt: skip
    question = d.choice("question", ["log_prob", "cdf", "crps"])
    value = torch.from_numpy(d.rng.uniform(0.1, 2, shape))
    given = d.choice("as", {"tensor": lambda v: v, "array": lambda v: v.numpy(),
                            "list": lambda v: v.tolist()})(value)  # fmt: skip

    def reads(event):
        try:
            torch.broadcast_shapes(event.shape[:-1], batch)
        except RuntimeError:
            return False
        return event.dim() > 0 and event.shape[-1] == 1

    readings = [e for e in (value if value.dim() else None, value.unsqueeze(-1))
                if e is not None and reads(e)]  # fmt: skip

    def ask(v):
        answer = getattr(mixture, question)(v)
        return getattr(answer, "value", answer)

    if not readings:
        refused(lambda: ask(given), f"{question} of shape {list(shape)} for batch {list(batch)}")
        return
    try:
        got = ask(given)
    except CondensError as error:
        # [4, 1] for a batch of 5 may be a mistake as well as a column.
        if len(readings) == 1 and (shape[-1:] != (1,) or readings[0] is value):
            text = f"refused the one reading of {list(shape)} for batch {list(batch)}: {error}"
            raise Wrong(text) from None
        raise
    wanted = []
    for event in readings:
        wide = torch.broadcast_shapes(event.shape[:-1], batch)
        full = mixture.expand(wide)
        each = [getattr(full[i], question)(event.expand(*wide, 1)[i])
                for i in itertools.product(*map(range, wide))]  # fmt: skip
        each = [getattr(one, "value", one) for one in each]
        wanted.append(torch.stack(each).reshape(wide))
    for expected in wanted:
        if got.shape == expected.shape and torch.allclose(got, expected, rtol=1e-9, atol=1e-12):
            return
    raise Wrong(f"{question}: {list(got.shape)} is no reading of {list(shape)} for {list(batch)}")


@property_of(250)
def test_rows_that_are_observed_in_part(d):
    """Any pattern of gaps, any batch, the empty one included, has the density of its marginals."""
    batch = d.choice("batch", [(), (0,), (1,), (4,), (0, 3), (2, 2)])
    dim = d.integer("dimensions", 1, 3)
    mixture = any_mixture(d, batch, dim)
    front = d.choice("front", [(), (2,), (0,)])
    y = mixture.sample(front, generator=d.generator)
    gaps = torch.from_numpy(d.rng.random(tuple(y.shape)) < d.choice("share", [0, 0.3, 1]))
    got = mixture.observed_log_prob(y.masked_fill(gaps, math.nan))
    need(got.shape == y.shape[:-1], f"shape {list(got.shape)} for {list(y.shape)}")
    wide = mixture.expand(y.shape[:-1])
    for i in itertools.product(*map(range, y.shape[:-1])):
        seen = (~gaps[i]).nonzero().flatten().tolist()
        expected = wide[i].marginal(seen).log_prob(y[i][seen]) if seen else torch.zeros(())
        near(got[i], expected, "observed_log_prob", rtol=1e-8, atol=1e-8)


@property_of(250)
def test_shapes_of_draws(d):
    """Sizes that no memory holds, negative, of other kinds: refused by name."""
    mixture = any_mixture(d, d.choice("batch", [(), (3,)]), d.integer("dim", 1, 3))
    method = d.choice("method", ["sample", "rsample"])
    if method == "rsample" and not mixture.has_rsample:
        method = "sample"
    shape = d.choice("shape", [(2**63,), (2**64,), (2**62, 4), (2**31, 2**33), (10**30,), (-1,),
                               (3, -2), (1.5,), ("3",), 5, None, "ab", (True,), (np.int64(2),),
                               torch.Size([2]), [2, 3], (np.float64(2),), ((2,),), (0,), (2, 0)])  # fmt: skip
    good = {repr(s) for s in ((True,), (np.int64(2),), torch.Size([2]), [2, 3], (0,), (2, 0))}
    call = lambda: getattr(mixture, method)(shape)  # noqa: E731
    if repr(shape) in good:
        sizes = tuple(int(s) for s in shape)
        need(call().shape == (*sizes, *mixture.batch_shape, mixture.dimensions), "draws' shape")
    else:
        refused(call, f"{method}({shape!r})")


HOSTILE = [2**64, 2**63, -1, 0, 1, math.nan, math.inf, -math.inf, 1e308, 5e-324, "5", "", None,
           True, False, b"x", [], [1], {}, 1.5, np.int64(3), np.float32(0.25), np.float64(0.5),
           np.bool_(True), np.array([1, 2]), torch.tensor(1), torch.tensor([1.0]), Fraction(1, 3),
           Decimal("0.5"), 1j, object, lambda: 1, "rule", "cosine", "data", 10**400, -(2**40)]  # fmt: skip


def small_problem(d, n=40, c=2, dim=2):
    x = d.normal(n, c)
    return x, x @ d.normal(c, dim) + 0.3 * d.normal(n, dim)


@property_of(700)
def test_settings_of_any_value(d):
    """A setting is refused by name, or it trains, and comes back from JSON as it was."""
    name = d.choice("setting", [f.name for f in fields(Settings)])
    drawn = [2 ** d.random.randint(31, 90), -d.random.random(), d.random.uniform(1, 9)]
    value = d.random.choice([*HOSTILE, *drawn])
    d.note("value", repr(value)[:60])
    options = {"epochs": 1, name: value}
    settings = Settings(**options)
    plain = settings.to_dict()
    try:
        text = json.dumps(plain)
    except TypeError as error:
        raise Wrong(f"to_dict is not plain: {error}") from None
    again = Settings.from_dict(json.loads(text))
    need(again == settings or repr(again) == repr(settings), f"{again!r} for {settings!r}")
    if settings.epochs > 3 or (isinstance(settings.batch_size, int) and settings.batch_size > 1e9):
        return
    network = MixtureNetwork.of(2, 2, n_components=2, width=4)
    history = train(network, small_problem(d), settings)
    need(len(history.epochs) >= 1, "no epoch was trained")
    with torch.no_grad():
        finite(network(torch.zeros(1, 2)).mean, "the network's mean")


class NoHead(nn.Module):
    def forward(self, x):
        return x


class Recurrent(nn.Module):
    """A backbone that returns a pair, as torch's recurrent layers do."""

    def __init__(self, kind):
        super().__init__()
        self.layer = kind(2, 4, batch_first=True)

    def forward(self, x):
        return self.layer(x.unsqueeze(1))


def backbones(d):
    """Return a backbone that does not fit a head of 4 features, and what it is."""
    wide = d.random.choice([1, 3, 5, 9])
    return d.choice("backbone", {
        "too wide": lambda: nn.Linear(2, wide),
        "gru": lambda: Recurrent(nn.GRU),
        "lstm": lambda: Recurrent(nn.LSTM),
        "torch's gru": lambda: nn.GRU(2, 4),
        "one axis": lambda: nn.Sequential(nn.Linear(2, 4), nn.Flatten(0)),
        "three axes": lambda: nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2))),
        "none": lambda: type("Nothing", (nn.Module,), {"forward": lambda s, x: None})(),
        "other columns": lambda: MLP(3, 4),
        "sum": lambda: type("Sum", (nn.Module,), {"forward": lambda s, x: x.sum()})(),
    })()  # fmt: skip


@property_of(250)
def test_what_cannot_be_trained(d):
    """No gradients, no parameters, no network, backbones that do not fit: refused by name."""
    kind = d.choice("kind", ["no_grad", "inference_mode", "frozen", "module", "backbone", "predict",
                             "data", "settings"])  # fmt: skip
    data, settings = small_problem(d), Settings(epochs=1)
    network = MixtureNetwork.of(2, 2, n_components=2, width=4)
    if kind == "no_grad":
        with torch.no_grad():
            start = network(data[0]).mean
            train(network, data, settings)
            moved = (network(data[0]).mean - start).abs().max()
        need(network.head.linear.weight.requires_grad, "parameters were frozen")
        need(float(moved) > 0, "train under no_grad trained nothing, without a word")
    elif kind == "inference_mode":
        with torch.inference_mode():
            train(network, data, settings)
    elif kind == "frozen":
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        refused(lambda: train(network, data, settings), "train of a frozen network")
    elif kind == "module":
        other = d.choice("module", {"class": lambda: NoHead, "linear": lambda: nn.Linear(2, 2),
                                    "head": lambda: FullHead(2, 2, 1), "none": lambda: None,
                                    "mlp": lambda: MLP(2, 4), "text": lambda: "network",
                                    "class of networks": lambda: MixtureNetwork})()  # fmt: skip
        refused(lambda: train(other, data, settings), "train", TypeError)
    elif kind in ("backbone", "predict"):
        head = HEADS[d.choice("head", list(HEADS))](4, 2, 2)
        wrong = MixtureNetwork(backbones(d), head, condition_columns=2)
        if kind == "predict":
            refused(lambda: wrong(data[0]), "network(condition)")
        refused(lambda: train(wrong, data, settings), "train with a backbone that does not fit")
    elif kind == "data":
        x, y = data
        wrong = d.choice("data", {
            "fewer rows": (x[:-3], y), "other columns": (x[:, :1], y), "other targets": (x, y[:, :1]),
            "none": None, "one": (x,), "text": "xy", "four": (x, y, y[:, 0], y), "empty": (x[:0], y[:0]),
            "infinite": (x, y.index_fill(0, torch.tensor([1]), math.inf)),
            "nan condition": (x.index_fill(0, torch.tensor([2]), math.nan), y),
            "all missing": (x, torch.full_like(y, math.nan)),
            "weights": (x, y, -torch.ones(len(x))), "no weight": (x, y, torch.zeros(len(x))),
            "few weights": (x, y, torch.ones(3)), "nan weight": (x, y, torch.full((len(x),), math.nan)),
            "complex": (x * 1j, y), "dict": {"x": x},
        })  # fmt: skip
        refused(lambda: train(network, wrong, settings), "train", TypeError)
    else:
        wrong = d.choice("settings", {"dict": {"epochs": 3}, "int": 3, "text": "fast"})
        refused(lambda: train(network, data, wrong), "train(settings=…)", TypeError)


@property_of(120)
def test_networks_refuse_conditions_that_are_not_numbers(d):
    """What `loss` and `nll` refuse, `forward` refuses too."""
    kind = d.choice("head", list(HEADS))
    network = MixtureNetwork.of(3, 2, n_components=2, width=4, covariance=kind)
    x, y = small_problem(d, 8, 3)
    bad = x.clone()
    bad[d.random.randrange(8), d.random.randrange(3)] = d.choice(
        "entry", [math.nan, math.inf, -math.inf]
    )
    door = d.choice("door", ["forward", "loss", "nll"])
    call = {"forward": lambda: network(bad).mean, "loss": lambda: network.loss(bad, y),
            "nll": lambda: network.nll(bad, y)}[door]  # fmt: skip
    if math.isnan(d.facts["entry"]) or door != "forward":
        refused(call, f"network by {door}")
    # As far as can be, and answered as what is far.
    finite(call(), f"network by {door}")


@property_of(200, refusals=False)
def test_no_closed_form_is_not_implemented(d):
    """torch's callers ask for NotImplementedError; supports and validation are torch's too."""
    mixture = any_mixture(d, d.choice("batch", [(), (3,)]), d.integer("dim", 1, 3))
    what = d.choice("what", ["error", "support", "independent", "biject", "validate_args", "check"])
    if what == "error":
        need(issubclass(NoClosedFormError, NotImplementedError), "no NotImplementedError")
        return
    if what == "validate_args":
        if isinstance(mixture, TransformedMixture):
            for flag in (True, False):
                TransformedMixture(mixture.base, mixture.transforms, validate_args=flag)
        return
    support = mixture.support
    draws = mixture.sample((4,))
    inside = support.check(draws)
    need(inside.shape == draws.shape[:-1], f"support.check has shape {list(inside.shape)}")
    need(bool(inside.all()), "a draw is outside the support")
    if what == "independent" and mixture.batch_shape:
        whole = torch.distributions.Independent(mixture, 1)
        need(bool(whole.support.check(draws).all()), "Independent's support")
        near(whole.log_prob(draws), mixture.log_prob(draws).sum(-1), "Independent")
    elif what == "biject" and not support.is_discrete:
        to = torch.distributions.biject_to(support)
        near(to(to.inv(draws)), draws, "biject_to and back", rtol=1e-5, atol=1e-5)


def traced_parts(d):
    k, dim, n = d.integer("k", 1, 3), d.integer("dim", 1, 3), d.integer("rows", 2, 6)
    t = dim * (dim + 1) // 2
    factors = torch.zeros(n, k, t, dtype=torch.float64)
    factors[..., :dim] = 9.0  # draws at their means, to 1e-3
    return d.normal(n, k), d.normal(n, k, dim), factors


@property_of(40, refusals=False, seconds=180)
def test_traced_draws_follow_their_parameters(d):
    """torch.jit.trace and make_fx of draws depend on what they are called with."""
    logits, means, factors = traced_parts(d)
    kind = d.choice("kind", ["gaussian", "positive"])

    def draw(means):
        mixture = GaussianMixture(logits, means, factors, validate_args=False)
        if kind == "positive":
            mixture = TransformedMixture(mixture, [Positive()] * means.shape[-1])
        return mixture.sample()

    how = d.choice("how", ["trace", "make_fx"])
    if how == "trace":
        traced = torch.jit.trace(draw, (means,), check_trace=False)
    else:
        traced = torch.fx.experimental.proxy_tensor.make_fx(draw)(means)
    shift = 0.01 if kind == "positive" else 1000.0
    moved = torch.full_like(means, shift) + means
    draws = traced(moved)
    near_mean = moved.exp() if kind == "positive" else moved
    gap = (draws.unsqueeze(-2) - near_mean).abs().amax(-1).amin(-1)
    need(float(gap.max()) < 0.05, f"a traced draw is {float(gap.max()):g} from every mean")


@property_of(36, refusals=False, seconds=240)
def test_compiled_and_exported_questions(d):
    """fullgraph compilation and torch.export of draws, densities and losses give eager's answers."""
    how = d.choice("how", ["compile", "export", "vmap"])
    what = d.choice("what", ["sample", "log_prob", "network.loss", "network.log_prob", "network"])
    validate = d.flag("validate")
    logits, means, factors = traced_parts(d)
    dim = means.shape[-1]
    network = MixtureNetwork.of(2, dim, n_components=2, width=4)
    x, y = d.normal(5, 2).float(), d.normal(5, dim).float()
    if how == "vmap":
        draws = torch.vmap(lambda *p: GaussianMixture(*p, validate_args=False).sample(),
                           randomness="different")(logits, means, factors)  # fmt: skip
        gap = (draws.unsqueeze(-2) - means).abs().amax(-1).amin(-1)
        need(float(gap.max()) < 0.05, f"a draw is {float(gap.max()):g} from every mean")
        return

    class Question(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, *given):
            if what == "network.loss":
                return self.network.loss(*given)
            if what == "network.log_prob":
                return self.network(given[0]).log_prob(given[1])
            if what == "network":
                return self.network(given[0]).mean
            mixture = GaussianMixture(logits, given[0], factors, validate_args=validate)
            return mixture.sample() if what == "sample" else mixture.log_prob(given[1])

    given = (x, y) if what.startswith("network") else (means, means[:, 0] + 0.1)
    if what in ("network", "sample"):
        given = given[:1]
    module = Question()
    torch._dynamo.reset()
    if how == "compile":
        made = torch.compile(module, backend="eager", fullgraph=True)
    else:
        made = torch.export.export(module, given).module()
    if what == "sample":
        moved = means + 50
        gap = (made(moved).unsqueeze(-2) - moved).abs().amax(-1).amin(-1)
        need(float(gap.max()) < 0.05, f"a draw is {float(gap.max()):g} from every mean")
    else:
        near(made(*given), module(*given), f"{how} of {what}", rtol=1e-4, atol=1e-4)


@property_of(30, refusals=False, seconds=300)
def test_mixtures_in_pyro(d):
    """Pyro's inference takes every continuous mixture as a latent site."""
    import pyro
    from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide

    from condens.integrations.pyro import for_pyro

    mixture = any_mixture(d, (), d.integer("dim", 1, 2))
    what = d.choice("what", ["nuts", "auto_normal", "infer_shapes", "support", "plate"])
    site = for_pyro(mixture)
    if what == "infer_shapes":
        shapes = {name: getattr(mixture, name, None) for name in ("logits", "means", "factors")}
        given = {k: v.shape for k, v in shapes.items() if v is not None}
        if isinstance(mixture, GaussianMixture):
            batch, event = type(site).infer_shapes(**given)
            need((batch, event) == (mixture.batch_shape, mixture.event_shape), f"{batch}, {event}")
        return
    if what == "plate":
        rows = any_mixture(d, (4,), 2)
        with pyro.plate("rows", 4):
            need(pyro.sample("y", for_pyro(rows)).shape == (4, 2), "draws in a plate")
        return
    need(hasattr(site.support, "check"), "no support")
    if site.support.is_discrete:
        return
    pyro.clear_param_store()
    model = lambda: pyro.sample("y", for_pyro(mixture))  # noqa: E731
    if what == "nuts":
        run = MCMC(NUTS(model, jit_compile=False), 3, warmup_steps=3, disable_progbar=True)
        run.run()
        finite(run.get_samples()["y"], "NUTS's draws")
    else:
        guide = autoguide.AutoNormal(model)
        step = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
        finite([step.step() for _ in range(2)], "SVI's losses")


@property_of(4, seconds=120)
def test_sbi_takes_a_builder(d):
    """`density_estimator` without its parentheses is refused by name, or works."""
    from sbi.inference import NPE
    from sbi.utils import BoxUniform

    from condens.integrations.sbi import density_estimator, fit

    dim = d.integer("dim", 1, 3)
    prior = BoxUniform(-torch.ones(dim), torch.ones(dim))
    theta = prior.sample((60,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inference = NPE(prior, density_estimator=density_estimator, show_progress_bars=False)
        inference.append_simulations(theta, theta + 0.1 * torch.randn_like(theta))
        if d.flag("our loop"):
            fit(inference, Settings(epochs=1))
        else:
            inference.train(max_num_epochs=1)


def regressor(**options):
    return MDNRegressor(**{"n_components": 2, "n_members": 1, "width": 8, "settings": Settings(epochs=2),
                           "random_state": 0, **options})  # fmt: skip


def told(call):
    """Return the text of the named error that a call raises."""
    try:
        call()
    except CondensError as error:
        return str(error)
    except Exception as error:
        raise Wrong(f"bare {type(error).__name__}: {error}") from None
    raise Wrong("not refused")


@property_of(60)
def test_advice_can_be_followed(d):
    """What a message says to do is not what was done, and leads on."""
    n = d.integer("rows", 60, 200)
    x, y = d.rng.normal(size=(n, 2)), d.rng.normal(size=n)
    what = d.choice("what", ["text", "numbers as text", "settings", "extreme positive"])
    if what == "text":
        words = [f"word {i % 7}" for i in range(n)]
        where = d.choice("where", ["y", "frame of objects", "names of rows", "bytes", "posterior"])
        frame = pd.DataFrame({"a": x[:, 0], "b": words})
        given = {"y": (x, frame), "bytes": (frame.assign(b=[w.encode() for w in words]), y),
                 "frame of objects": (frame.astype(object).assign(b=[*words[1:], 3.0]), y),
                 "names of rows": (frame.assign(b=[f"word {i}" for i in range(n)]), y),
                 "posterior": (x, frame)}[where]  # fmt: skip
        call = posterior if where == "posterior" else regressor().fit
        text = told(lambda: call(*given))
        need("ass a dataframe" not in text.lower(), text)
    elif what == "numbers as text":
        frame = pd.DataFrame({"a": x[:, 0], "b": [f"{v + i:.4f}" for i, v in enumerate(x[:, 1])]})
        text = told(lambda: regressor().fit(frame, y))
        need("number" in text.lower(), f"numbers as text: {text}")
    elif what == "settings":
        given = d.choice("settings", [{"epochs": 5}, {"learning_rate": 0.1, "epochs": 2}])
        text = told(lambda: regressor(settings=given).fit(x, y))
        need("Settings(" in text or "Change it" not in text, f"settings={given}: {text}")
    else:
        scale = d.power("scale", 4, 8)
        wide = np.exp(d.rng.normal(size=n) * math.log(scale))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                regressor(n_components=3).fit(x, wide)
                text = " ".join(str(w.message) for w in caught)
            except CondensError as error:
                text = str(error)
        if text and ("explained by no component" in text or "not finite" in text):
            need("positive" in text, f"targets over {scale:.0e}: {text[:300]}")


@property_of(12)
def test_training_errors_of_an_estimator(d):
    """A regressor that fails to train does not speak of a network that it has not."""

    class Broken(nn.Module):
        features = 4

        def __init__(self, columns):
            super().__init__()
            self.linear, self.calls = nn.Linear(columns, 4), 0

        def forward(self, x):
            self.calls += self.training
            return self.linear(x) * (math.nan if self.calls > 2 else 1.0)

    n = d.integer("rows", 60, 120)
    x, y = d.rng.normal(size=(n, 2)), d.rng.normal(size=n)
    settings = Settings(epochs=60, batch_size=8)
    text = told(lambda: regressor(backbone=Broken, settings=settings).fit(x, y))
    need("in the network" not in text, text)


@property_of(40, refusals=False)
def test_reprs_are_short(d):
    """A repr tells what was chosen, in a few lines."""
    epochs = d.integer("epochs", 2, 6)
    settings = Settings(epochs=epochs, seed=d.integer("seed", 0, 99))
    model = regressor(settings=settings)
    text = repr(model)
    need(len(text) < 400 and text.count("=") < 10, f"repr of a model has {len(text)} characters")
    need(len(repr(settings)) < 200, f"repr of settings: {repr(settings)[:120]}")
    if d.case % 8 == 0:
        model.fit(d.rng.normal(size=(40, 2)), d.rng.normal(size=40))
        text = repr(model.history_)
        need(len(text) < 500, f"repr of history_ has {len(text)} characters")


@property_of(6, refusals=False)
def test_histories_are_drawn_where_pyplot_looks(d):
    """`plot_history()` is the current figure of pyplot."""
    import io

    from matplotlib import pyplot as plt

    plt.close("all")
    model = regressor(settings=Settings(epochs=3)).fit(
        d.rng.normal(size=(40, 2)), d.rng.normal(size=40)
    )
    model.plot_history()
    need(plt.get_fignums(), "pyplot knows no figure")
    file = io.BytesIO()
    plt.savefig(file, format="png")
    pixels = plt.imread(io.BytesIO(file.getvalue()))
    need(float(pixels[..., :3].min()) < 0.9, "the picture is empty")
    plt.close("all")


@property_of(300)
def test_questions_with_wrong_arguments(d):
    """Levels, masses, counts, dimensions and directions of any kind: answered or refused."""
    mixture = any_mixture(d, d.choice("batch", [(), (3,)]), d.integer("dim", 1, 2))
    place = d.random.randrange(len(HOSTILE))
    value = HOSTILE[place]
    d.note("value", repr(value)[:60])
    question = d.choice("question", ["icdf", "interval", "hpd_threshold", "marginal", "condition",
                                     "affine", "project", "entropy", "log_prob", "cdf", "quantile",
                                     "names", "expand", "getitem"])  # fmt: skip
    one = mixture.marginal(0)
    calls = {
        "icdf": lambda: one.icdf(value),
        "interval": lambda: one.interval(value),
        "hpd_threshold": lambda: mixture.hpd_threshold(value, n_samples=50),
        "marginal": lambda: mixture.marginal(value).mean,
        "condition": lambda: mixture.condition({0: value}).mean,
        "affine": lambda: mixture.affine(value).mean,
        "project": lambda: mixture.project(value).mean,
        "entropy": lambda: mixture.entropy(n_samples=value),
        "log_prob": lambda: mixture.log_prob(value),
        "cdf": lambda: one.cdf(value),
        "quantile": lambda: mixture.quantile(0.5, value),
        "names": lambda: GaussianMixture(*gaussian(d).parameters, names=value).mean,
        "expand": lambda: mixture.expand(value).mean,
        "getitem": lambda: mixture[value].mean,
    }
    if question == "entropy" and type(value) is int and value > 2**31:
        return  # as many draws as were asked for
    if question in ("expand", "getitem"):
        try:
            answer = calls[question]()
        except CondensError:
            return
        except (TypeError, IndexError, RuntimeError, ValueError, OverflowError):
            return  # torch's own, which indexes and expands
    else:
        try:
            answer = calls[question]()
        except NoClosedFormError as error:
            raise Refused from error
        except (KeyError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
            raise Wrong(f"{question}: bare {type(error).__name__}: {error}") from None
        except TypeError as error:
            need(isinstance(error, CondensError), f"{question}: bare TypeError: {error}")
            raise Refused from error
    no_nan(answer, question)


@property_of(60, refusals=False)
def test_copies_are_equal(d):
    """Mixtures and networks survive copy, deepcopy and pickle."""
    import pickle

    mixture = any_mixture(d, d.choice("batch", [(), (3,)]), 2)
    how = d.choice("how", {"copy": copy.copy, "deepcopy": copy.deepcopy,
                           "pickle": lambda m: pickle.loads(pickle.dumps(m))})  # fmt: skip
    y = mixture.sample()
    near(how(mixture).log_prob(y), mixture.log_prob(y), "a copy's log_prob", rtol=0)
    network = MixtureNetwork.of(2, 2, n_components=2, width=4)
    x = d.normal(3, 2)
    near(how(network)(x).mean, network(x).mean, "a copy's mean", rtol=0)
