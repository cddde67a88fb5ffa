"""Every implementation of the kernel against the plain functions of layer 1."""

import math
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from helpers.implementations import IMPLEMENTATIONS, forced
from helpers.reference import COVARIANCES, random_parameters
from torch.testing import assert_close

from condens import functional, kernels
from condens.errors import ArgumentError
from condens.functional import log_prob, nll
from condens.functional.fused_linear import Layout
from condens.kernels import eager, native
from condens.kernels.memory import span

SIZES = [(1, 1, 1), (7, 3, 2), (64, 1, 3), (130, 5, 5), (70, 20, 2), (65, 3, 20)]


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request, monkeypatch):
    yield from forced(request.param, monkeypatch)


def batch_last(tensor):
    """Return the same numbers, with the batch last in memory."""
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


LAYOUTS = {
    "batch first": lambda t: t,
    "batch last": batch_last,
    "every second row": lambda t: t.repeat_interleave(2, 0)[::2],
    "reversed axes": lambda t: (
        t.permute(*reversed(range(t.dim()))).contiguous().permute(*reversed(range(t.dim())))
    ),
}


def case(batch, n_components, dimensions, covariance="full", dtype=torch.float64):
    parameters = random_parameters((batch,), n_components, dimensions, covariance=covariance)
    target = 2 * torch.randn(batch, dimensions, dtype=torch.float64)
    return [t.to(dtype) for t in (target, *parameters)]


def with_gradients(loss, inputs, weights):
    inputs = [t.detach().requires_grad_() for t in inputs]
    value = loss(*inputs)
    return value.detach(), torch.autograd.grad((value * weights).sum(), inputs)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_loss_and_gradients_are_those_of_layer_1(implementation, size, layout, covariance):
    inputs = case(*size, covariance)
    weights = torch.rand(size[0], dtype=torch.float64)
    expected, expected_gradients = with_gradients(lambda *a: -log_prob(*a), inputs, weights)
    laid_out = [LAYOUTS[layout](t) for t in inputs]
    value, gradients = with_gradients(nll, laid_out, weights)
    assert_close(value, expected, rtol=1e-11, atol=1e-11)
    assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-10)
    laid_out = [t.detach().requires_grad_() for t in laid_out]
    total = functional.loss(*laid_out, weights)
    assert_close(total.detach(), (expected * weights).sum(), rtol=1e-11, atol=1e-11)
    gradients = torch.autograd.grad(total, laid_out)
    assert_close(gradients, expected_gradients, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_float32(implementation, covariance):
    inputs = case(130, 5, 10, covariance, torch.float32)
    weights = torch.rand(130)
    wide = [t.double() for t in inputs]
    expected, expected_gradients = with_gradients(lambda *a: -log_prob(*a), wide, weights.double())
    value, gradients = with_gradients(nll, inputs, weights)
    assert value.dtype == torch.float32
    assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        assert_close(gradient.double(), reference, rtol=1e-4, atol=1e-5)


def test_weighted_mean_by_default_and_scaled_upstream(implementation):
    inputs = [t.requires_grad_() for t in case(40, 3, 4)]
    mean = functional.loss(*inputs)
    assert_close(mean, -log_prob(*inputs).mean(), rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad(3 * functional.loss(*inputs), inputs)
    expected = torch.autograd.grad(-3 * log_prob(*inputs).mean(), inputs)
    assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_a_second_backward_pass_over_the_same_graph(implementation):
    inputs = [t.requires_grad_() for t in case(10, 3, 2)]
    for loss in (functional.loss, lambda *a: nll(*a).mean()):
        value = loss(*inputs)
        first = torch.autograd.grad(2 * value, inputs, retain_graph=True)
        second = torch.autograd.grad(2 * value, inputs)
        assert_close(first, second, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
def test_gradients_of_views_take_no_more_than_twice_their_memory():
    outputs = torch.randn(3000, 5 * (1 + 4 + 10), dtype=torch.float64)
    parts = Layout(5, 4, 10).split(outputs)
    target = torch.randn(3000, 4, dtype=torch.float64)
    _, made = native.total((target, *parts), weights=None, to_target=False)
    assert all(span(part.shape, part.stride()) <= 2 * part.numel() for part in made[1:])
    apart = [part.clone() for part in parts]
    assert_close(made[1:], native.total((target, *apart), weights=None, to_target=False)[1][1:])


def of_series():
    """Every row of the target is the one before, moved by one."""
    series = torch.randn(134, dtype=torch.float64)
    return [series], lambda series, *rest: (series.unfold(0, 5, 1), *rest)


def of_expanded():
    """All rows and components have one mean and one factor."""
    shared = [torch.randn(1, 1, n, dtype=torch.float64) for n in (5, 15)]
    return shared, lambda means, factors, target, logits: (
        target,
        logits,
        means.expand(130, 3, 5),
        factors.expand(130, 3, 15),
    )


def of_one_view():
    """Means and log-diagonals are one view, and the logits lie between its rows."""
    whole = torch.randn(3000, 20, 6, dtype=torch.float64)
    return [whole], lambda whole, target: (
        target,
        whole[..., 5],
        whole[..., :5],
        whole[..., :5],
    )


def of_overlapping_axes():
    """Components overlap in memory, and rows do."""
    series = torch.randn(200, dtype=torch.float64)
    return [series], lambda series, target, logits, factors: (
        target,
        logits,
        series.as_strided((130, 3, 5), (1, 2, 1)),
        factors,
    )


OVERLAPS = [
    (of_series, (130, 3), (130, 3, 5), (130, 3, 15)),
    (of_expanded, (130, 5), (130, 3)),
    (of_one_view, (3000, 5)),
    (of_overlapping_axes, (130, 5), (130, 3), (130, 3, 15)),
]


@pytest.mark.parametrize("overlap", OVERLAPS, ids=lambda o: o[0].__name__)
def test_entries_that_share_memory_share_their_gradient(implementation, overlap):
    make, *shapes = overlap
    leaves, view = make()
    others = [0.5 * torch.randn(*shape, dtype=torch.float64) for shape in shapes]
    leaves = [t.requires_grad_() for t in (*leaves, *others)]
    weights = torch.rand(view(*leaves)[0].shape[0], dtype=torch.float64)
    expected = -(log_prob(*view(*leaves)) * weights).sum()
    reference = torch.autograd.grad(expected, leaves)
    for value in (
        (nll(*view(*leaves)) * weights).sum(),
        functional.loss(*view(*leaves), weights),
    ):
        assert_close(value, expected, rtol=1e-10, atol=1e-10)
        assert_close(torch.autograd.grad(value, leaves), reference, rtol=1e-8, atol=1e-9)


LOSSES = {
    "nll": lambda *inputs: nll(*inputs).sum(),
    "loss": functional.loss,
    "loss with weights": lambda *inputs: functional.loss(*inputs, torch.rand(10)),
}


@pytest.mark.parametrize("which", range(4), ids=["target", "logits", "means", "factors"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_change_between_the_passes_is_noticed(implementation, loss, which):
    """By torch itself, in a first backward pass as in a second."""
    leaves = [t.requires_grad_() for t in case(10, 3, 2)]
    for passes in (0, 1):
        inputs = [leaf * 1 for leaf in leaves]
        value = LOSSES[loss](*inputs)
        for _ in range(passes):
            value.backward(retain_graph=True)
        with torch.no_grad():
            inputs[which].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


def test_a_change_of_weights_between_the_passes_is_noticed(implementation):
    inputs, weights = [t.requires_grad_() for t in case(10, 3, 2)], torch.rand(10).double()
    value = functional.loss(*inputs, weights)
    weights.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def in_double(inputs):
    exact = [t.detach().double().requires_grad_() for t in inputs]
    value = -log_prob(*exact).sum()
    return value, torch.autograd.grad(value, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_diagonal", [80.0, 88.0, 89.0, 96.8, 120.0, 353.0, 700.0])
def test_gradients_at_the_mean_of_the_narrowest_components(implementation, log_diagonal, dtype):
    inputs = [torch.zeros(3, 2), torch.zeros(3, 2), torch.zeros(3, 2, 2), torch.zeros(3, 2, 3)]
    inputs[3][..., :2] = log_diagonal
    inputs = [t.to(dtype).requires_grad_() for t in inputs]
    for loss in (lambda *a: nll(*a).sum(), lambda *a: 3 * functional.loss(*a)):
        value = loss(*inputs)
        assert_close(
            value.item(), 3 * (math.log(2 * math.pi) - 2 * log_diagonal), rtol=1e-6, atol=0
        )
        made = torch.autograd.grad(value, inputs)
        assert_close(made[:3], [torch.zeros_like(t) for t in inputs[:3]])
        expected = torch.tensor([-0.5, -0.5, 0.0], dtype=dtype).expand(3, 2, 3)
        assert_close(made[3], expected)


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("magnitude", [1e-40, 1e-30, 1e-10, 1.0, 1e19, 1e30, 3e38])
@pytest.mark.parametrize("log_diagonal", [-80.0, -40.0, 0.0, 40.0, 60.0, 88.0])
def test_gradients_in_float32_are_those_in_double(
    implementation, log_diagonal, magnitude, covariance
):
    """Wherever these are finite in float32: a component in use, and one that cannot be."""
    target = magnitude * torch.tensor([[1.0, -0.5, 0.25]]).expand(5, 3)
    packed = 6 if covariance == "full" else 3
    factors = torch.full((5, 2, packed), 0.5)
    factors[:, 0, :3], factors[:, 1, :3] = log_diagonal, -40.0
    means = torch.zeros(5, 2, 3)
    means[:, 1] = -magnitude
    inputs = [t.clone().requires_grad_() for t in (target, torch.zeros(5, 2), means, factors)]
    value = nll(*inputs).sum()
    exact, reference = in_double(inputs)
    if not value.isfinite():
        assert exact > torch.finfo(torch.float32).max
        return
    assert_close(value.double(), exact, rtol=1e-5, atol=1e-5)
    for gradient, expected in zip(torch.autograd.grad(value, inputs), reference, strict=True):
        assert not gradient.isnan().any()
        held = expected.abs() < 1e38
        assert_close(
            gradient.double()[held],
            expected[held],
            rtol=1e-3,
            atol=1e-37 + 1e-6 * float(expected[held].abs().max() if held.any() else 0),
        )


@pytest.mark.slow
def test_short_threads_leave_nothing_behind():
    """Each keeps scratch of two megabytes while it lives: 400 in all."""
    code = """
import threading
from pathlib import Path
import torch
from condens.functional import nll, sample
torch.set_num_threads(1)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
parameters = (torch.zeros(256, 20), torch.randn(256, 20, 30), torch.zeros(256, 20, 465))
target = torch.randn(256, 30)
def work():
    nll(target, *parameters)
    sample(*parameters)
for _ in range(5):
    work()
before = resident()
for _ in range(200):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(resident() - before)
"""
    if native.missing or not Path("/proc/self/statm").exists():
        pytest.skip("no native kernel, or nowhere to read the resident memory")
    grown = float(run(code, CONDENS_KERNEL="").stdout.splitlines()[-1])
    assert grown < 40


def test_only_what_is_asked_for_gets_a_gradient(implementation):
    target, logits, means, factors = case(10, 3, 2)
    means.requires_grad_()
    for loss in (functional.loss, lambda *a: nll(*a).mean()):
        (gradient,) = torch.autograd.grad(loss(target, logits, means, factors), means)
        (expected,) = torch.autograd.grad(-log_prob(target, logits, means, factors).mean(), means)
        assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_derivatives_of_both_orders(implementation, covariance):
    inputs = [t.requires_grad_() for t in case(3, 2, 3, covariance)]
    weights = torch.rand(3, dtype=torch.float64)
    for loss in (nll, lambda *a: functional.loss(*a, weights)):
        assert torch.autograd.gradcheck(loss, inputs)
        assert torch.autograd.gradgradcheck(loss, inputs)


def test_expanded_parameters_share_their_gradient(implementation):
    target, logits, means, factors = case(20, 3, 2)
    shared = [t[:1].clone().requires_grad_() for t in (logits, means, factors)]
    expanded = [t.expand(20, *t.shape[1:]) for t in shared]
    ours = torch.autograd.grad(functional.loss(target, *expanded), shared)
    expected = torch.autograd.grad(-log_prob(target, *expanded).mean(), shared)
    assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_any_batch_shape_and_what_broadcasts(implementation):
    logits, means, factors = random_parameters((4, 5), 3, 2)
    target = torch.randn(4, 5, 2, dtype=torch.float64)
    assert_close(nll(target, logits, means, factors), -log_prob(target, logits, means, factors))
    many = torch.randn(6, 4, 5, 2, dtype=torch.float64)
    assert_close(nll(many, logits, means, factors), -log_prob(many, logits, means, factors))
    empty = [t[:0] for t in (target, logits, means, factors)]
    assert nll(*empty).shape == (0, 5)


def test_extremes_are_those_of_layer_1(implementation):
    """A lost row, a lost component, a NaN, a component without weight."""
    inputs = case(70, 3, 2, dtype=torch.float32)
    target, logits, means, factors = inputs
    target[3] = 1e25
    target[4, 1] = torch.inf
    means[5, 1] = 1e30
    logits[6, 2] = -torch.inf
    factors[7, 0, 0] = 60.0
    weights = torch.rand(70)
    expected, expected_gradients = with_gradients(lambda *a: -log_prob(*a), inputs, weights)
    value, gradients = with_gradients(nll, inputs, weights)
    assert value[[3, 4]].isposinf().all()
    assert_close(value, expected, rtol=1e-4, atol=1e-4)
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        assert not gradient.isnan().any()
        assert_close(gradient, reference, rtol=1e-3, atol=1e-4)
    target[8] = torch.nan
    assert nll(*inputs).isnan().nonzero().tolist() == [[8]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_gradient_lacks_digits(implementation, dtype):
    # Shares of a component that fade from sample to sample, through all that can be held: a
    # matrix product with what is left below the smallest normal number is five times slower.
    smallest = torch.finfo(dtype).tiny
    width = math.sqrt(-2 * math.log(smallest)) + 2
    target = torch.linspace(0, width, 1001, dtype=dtype)[:, None]
    logits = torch.zeros(1001, 2, dtype=dtype)
    means = torch.tensor([0.0, width], dtype=dtype).expand(1001, 2)[..., None].clone()
    factors = torch.zeros(1001, 2, 1, dtype=dtype)
    _, gradients = with_gradients(functional.nll, (target, logits, means, factors), 1.0)
    for gradient in gradients:
        size = gradient.abs()
        assert bool(((size == 0) | (size >= smallest)).all())
    assert float(gradients[2].abs().sum(0).min()) > 1


def test_under_functional_transforms(implementation):
    inputs = case(6, 3, 3)
    rowwise = torch.func.vmap(nll)(*inputs)
    assert_close(rowwise, -log_prob(*inputs), rtol=1e-12, atol=1e-12)
    gradient = torch.func.grad(lambda f: nll(*inputs[:3], f).sum())(inputs[3])
    (expected,) = torch.autograd.grad(nll(*inputs[:3], inputs[3].requires_grad_()).sum(), inputs[3])
    assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_under_compilation(implementation):
    inputs = [t.requires_grad_() for t in case(40, 3, 4)]
    compiled = torch.compile(lambda *a: nll(*a).mean(), backend="aot_eager", fullgraph=True)
    value = compiled(*inputs)
    assert_close(value, nll(*inputs).mean(), rtol=1e-12, atol=1e-12)
    ours = torch.autograd.grad(value, inputs)
    expected = torch.autograd.grad(nll(*inputs).mean(), inputs)
    assert_close(ours, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
def test_under_export(implementation):
    class Loss(torch.nn.Module):
        def forward(self, *inputs):
            return nll(*inputs)

    inputs = [t.float() for t in case(5, 3, 2)]
    rows = torch.export.Dim("rows", min=2, max=1000)
    program = torch.export.export(
        Loss(), tuple(inputs), dynamic_shapes=(tuple({0: rows} for _ in inputs),)
    )
    others = [t.float() for t in case(9, 3, 2)]
    assert_close(program.module()(*others), -log_prob(*others), rtol=1e-5, atol=1e-5)
    assert "condens.nll" in str(program.graph)


@pytest.mark.slow
def test_a_stored_program_finds_its_operators(tmp_path):
    """A process that only imports condens.functional can load and run an exported program."""

    class Loss(torch.nn.Module):
        def forward(self, *inputs):
            return nll(*inputs)

    inputs = tuple(t.float() for t in case(5, 3, 2))
    torch.export.save(torch.export.export(Loss(), inputs), tmp_path / "loss.pt2")
    torch.save(inputs, tmp_path / "inputs.pt")
    code = f"""
import torch
import condens.functional
torch.ops.condens.draw
inputs = torch.load({str(tmp_path / "inputs.pt")!r})
print(torch.export.load({str(tmp_path / "loss.pt2")!r}).module()(*inputs).sum().item())
"""
    printed = float(run(code).stdout)
    assert printed == pytest.approx(-log_prob(*inputs).sum().item(), rel=1e-5)


def test_operators_are_well_formed():
    for requires_grad in (False, True):
        inputs = tuple(t.requires_grad_(requires_grad) for t in case(5, 3, 2))
        # No dynamic shapes of zero strides are promised; schema, fake and autograd are.
        torch.library.opcheck(
            torch.ops.condens.nll,
            inputs,
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
def test_threads_do_not_change_a_bit():
    inputs = case(1000, 5, 6)
    weights = torch.rand(1000, dtype=torch.float64)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(with_gradients(nll, inputs, weights))
    finally:
        torch.set_num_threads(before)
    for value, gradients in results[1:]:
        assert torch.equal(value, results[0][0])
        assert all(torch.equal(a, b) for a, b in zip(gradients, results[0][1], strict=True))


@pytest.mark.skipif(bool(native.missing), reason=native.missing)
def test_native_decides_between_equally_distant_components():
    """Sums are in double: at 1000 σ float32 would round the energies to multiples of 0.03."""
    torch.manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(50, 3, 4), dim=-1)
    inputs = [torch.zeros(50, 4), torch.randn(50, 3), 1e3 * direction, torch.zeros(50, 3, 10)]
    weights = torch.ones(50)
    _, gradients = with_gradients(nll, inputs, weights)
    wide = [t.double() for t in inputs]
    _, expected = with_gradients(nll, wide, weights.double())
    assert_close(gradients[1].double(), expected[1], rtol=1e-4, atol=1e-5)


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


def test_choice_is_visible_and_can_be_forced(monkeypatch):
    for name in ("eager", "reference"):
        monkeypatch.setenv("CONDENS_KERNEL", name)
        assert kernels.active() == name
    monkeypatch.setenv("CONDENS_KERNEL", "fast")
    with pytest.raises(ArgumentError, match=r"CONDENS_KERNEL is 'fast'.*native, eager, reference"):
        kernels.active()


def test_without_the_extension_everything_works_and_says_so_once():
    code = """
import sys
sys.modules["condens.kernels._native"] = None   # as if it had not been built
import torch
from condens import functional, kernels
from condens.functional import nll
x, z = torch.zeros(4, 2), torch.zeros(4, 3)
for _ in range(3):
    print(nll(x, z, torch.zeros(4, 3, 2), torch.zeros(4, 3, 3)).sum().item())
print(kernels.active())
"""
    done = run(code, CONDENS_KERNEL="")
    assert done.stdout.splitlines()[-1] == "eager"
    assert float(done.stdout.splitlines()[0]) == pytest.approx(4 * 1.8378770664)
    assert done.stderr.count("without its native kernel") == 1


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_without_openmp_everything_works_and_says_so_once(tmp_path):
    """A build as on a machine whose compiler has no OpenMP."""
    source = Path(kernels.__file__).with_name("_native.c")
    built = tmp_path / "_native.so"
    include = sysconfig.get_paths()["include"]
    flags = ["-O1", "-std=gnu11", "-fopenmp-simd", "-fPIC", "-shared", "-Wno-psabi"]
    subprocess.run(["cc", *flags, f"-I{include}", str(source), "-lm", "-o", str(built)], check=True)
    code = f"""
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
loader = ExtensionFileLoader("condens.kernels._native", {str(built)!r})
module = module_from_spec(spec_from_file_location(loader.name, {str(built)!r}, loader=loader))
loader.exec_module(module)
sys.modules[loader.name] = module
import torch
torch.set_num_threads(2)
from condens import functional, kernels
from condens.functional import nll
x, z = torch.zeros(200, 2), torch.zeros(200, 3)
for _ in range(3):
    print(nll(x, z, torch.zeros(200, 3, 2), torch.zeros(200, 3, 3)).mean().item())
print(kernels.active())
"""
    done = run(code, CONDENS_KERNEL="")
    assert done.stdout.splitlines()[-1].endswith("one thread: built without OpenMP)")
    assert float(done.stdout.splitlines()[0]) == pytest.approx(1.8378770664)
    assert done.stderr.count("without OpenMP") == 1


def test_eager_serves_what_native_does_not():
    assert eager.serves(torch.empty(0))
    assert not native.serves(torch.empty(0, dtype=torch.float16))
    half = [t.to(torch.bfloat16) for t in case(4, 3, 2)]
    assert nll(*half).dtype == torch.bfloat16
