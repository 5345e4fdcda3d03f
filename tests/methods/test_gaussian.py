"""Properties of METHODS section 4: torch.distributions as reference; teachers that are missing, doubled, wide."""

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal

from distilvec.errors import DistilvecError
from distilvec.methods.table import build_options
from distilvec.modules.kernel_head import GaussianKernels, bounded
from distilvec.modules.layouts import has_kernels
from distilvec.teachers.signals import TeacherInfo

ROWS = range(8)


def terms_of(world, method, rows=ROWS):
    world.encoder.eval()
    return method(world.output(rows), world.signals(rows), world.batch(rows))


def targets(world, method, teacher=0, rows=ROWS):
    return method.kernels.standardise(teacher, world.vectors[teacher][list(rows)])


@pytest.mark.parametrize("bound", ["soft", "tanh"])
def test_the_diagonal_likelihood_is_that_of_torch(world, bound) -> None:
    method = world.method("gaussian", width=16, bound=bound, beta_nll=0)
    found = terms_of(world, method)["nll"].values
    kernel = method.kernels(world.output(ROWS).embedding)[0]
    deviation = (0.5 * bounded(kernel.spread, bound)).exp()
    expected = -Normal(kernel.mean, deviation).log_prob(targets(world, method)[:, None]).mean(-1).squeeze(-1)
    torch.testing.assert_close(found, expected)


def test_the_bounds_are_those_that_are_documented() -> None:
    far = torch.tensor([-1e6, -3.0, 0.0, 3.0, 1e6])
    soft, tanh = bounded(far, "soft"), bounded(far, "tanh")
    assert soft[0] == -10 and soft[-1] == 10 and soft[2] == 0
    deviation = (0.5 * tanh).exp()
    assert deviation.max() <= math.e + 1e-5 and deviation.min() >= 1 / math.e - 1e-5
    assert deviation[0] > deviation[-1], "what the code predicts is an inverse deviation"


def test_a_mixture_is_that_of_torch(world) -> None:
    method = world.method("gaussian", width=16, components=3)
    found = terms_of(world, method)["nll"].values
    kernel = method.kernels(world.output(ROWS).embedding)[0]
    deviation = (0.5 * bounded(kernel.spread, "soft")).exp()
    mixture = MixtureSameFamily(Categorical(logits=kernel.weights), Independent(Normal(kernel.mean, deviation), 1))
    torch.testing.assert_close(found, -mixture.log_prob(targets(world, method)) / world.vectors[0].shape[1])


def test_triangular_covariance_is_that_of_torch(world) -> None:
    method = world.method("gaussian", width=16, covariance="triangular")
    with torch.no_grad():
        method.kernels.factors[0].normal_(std=0.3)
    found = terms_of(world, method)["nll"].values
    kernel = method.kernels(world.output(ROWS).embedding)[0]
    inverse = (-0.5 * bounded(kernel.spread.squeeze(-2), "soft")).exp()
    factor = inverse[..., None] * kernel.factor
    precision = (factor @ factor.mT).double()
    normal = MultivariateNormal(kernel.mean.squeeze(-2).double(), precision_matrix=precision)
    expected = -normal.log_prob(targets(world, method).double()) / world.vectors[0].shape[1]
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gaussian", "multi_mse", "multi_cosine"])
def test_a_teacher_that_has_nothing_teaches_its_kernel_nothing(two_teachers, loss, name) -> None:
    world = two_teachers
    method = world.method(name, width=16, **({"covariance": "triangular"} if name == "gaussian" else {}))
    signals = world.signals(ROWS)
    signals[1].present[:] = False
    signals[1].sentence.zero_()
    loss(method(world.output(ROWS), signals, world.batch(ROWS))).backward()
    stacks = method.kernels.stacks
    position = {teacher: (s, k) for s, group in enumerate(method.kernels.members) for k, teacher in enumerate(group)}
    for teacher, reached in ((0, True), (1, False)):
        stack, place = position[teacher]
        gradients = [weight.grad[place].abs().max() for weight in stacks[stack].weights]
        parts = [method.kernels.maps[teacher].weight, *list(method.kernels.factors)[teacher : teacher + 1]]
        gradients += [part.grad.abs().max() for part in parts]
        assert all(bool(gradient > 0) is reached for gradient in gradients)


@pytest.mark.parametrize("name", ["multi_mse", "multi_cosine"])
def test_a_perfect_student_is_at_the_minimum(world, name) -> None:
    """Kernels that hand on the student's vector, which is the teacher's: no gradient, and any disturbance costs."""
    world.encoder.eval()
    with torch.no_grad():
        world.vectors = [world.output(range(64)).embedding[0]]
    method = world.method(name, width=16, vectors="raw")
    world.encoder.eval()
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.zero_()
        method.kernels.maps[0].weight.copy_(torch.eye(12))
    world.assert_at_the_minimum(method)


def test_coordinates_of_very_different_units_all_count(world) -> None:
    """Descriptors of molecules: one is a billion times another, and constants are constants in any unit."""
    units = 10.0 ** torch.linspace(-3, 8, 12)
    world.vectors = [torch.randn(64, 16, generator=torch.Generator().manual_seed(0)).abs()]
    world.vectors[0][:, :12] *= units
    world.vectors[0][:, 12:] = torch.tensor([0.0, 1.0, 1e6, 5.0])
    world.vectors[0][:, 15] += 1e-6 * torch.randn(64)
    world.vectors[0][3, 11] = 3.4e38  # as far as float32 goes
    method = world.method("gaussian", width=16)
    live = method.kernels.live(0)
    assert live[:12].all() and not live[12:].any()
    kernel = method.kernels(world.output(ROWS).embedding)[0]
    far = kernel._replace(mean=kernel.mean - 5)  # what is explained may be very little, and not nothing at all
    assert method._explained(0, far, targets(world, method)).isfinite().all()


def test_explained_share_of_a_cosine_does_not_depend_on_length(world) -> None:
    method = world.method("multi_cosine", width=16)
    kernel, target = method.kernels(world.output(ROWS).embedding)[0], targets(world, method)
    found = method._explained(0, kernel, target)
    long = method._explained(0, kernel._replace(mean=1e4 * kernel.mean), target)
    torch.testing.assert_close(long, found)
    exact = kernel._replace(mean=7 * target[None, :, None, :].expand_as(kernel.mean))
    torch.testing.assert_close(method._explained(0, exact, target), torch.ones_like(found))


def test_the_published_codes_heads_are_as_wide_as_the_student(world) -> None:
    shapes = [weight.shape for weight in world.method("multi_mse", preset="code").kernels.stacks[0].weights]
    assert [shape[-2:] for shape in shapes][:2] == [(12, 12), (12, 12)] and len(shapes) == 3


@pytest.mark.parametrize(("name", "options"), [("gaussian", {}), ("multi_mse", {}), ("multi_cosine", {})])
def test_a_teacher_twice_gives_the_student_the_gradient_of_once(world, two_teachers, loss, name, options) -> None:
    single = world.method(name, width=16, **options)
    two_teachers.vectors = [world.vectors[0], world.vectors[0]]
    two_teachers.encoder.load_state_dict(world.encoder.state_dict())
    double = two_teachers.method(name, width=16, **options)
    with torch.no_grad():
        for one, two in zip(single.kernels.stacks[0].parameters(), double.kernels.stacks[0].parameters(), strict=True):
            two.copy_(one.expand_as(two))
    gradients = []
    for place, method in ((world, single), (two_teachers, double)):
        place.encoder.eval()
        output = place.output(ROWS)
        output.embedding.retain_grad()
        loss(method(output, place.signals(ROWS), place.batch(ROWS))).backward()
        gradients.append(output.embedding.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-7)


def test_a_teachers_dimensions_twice_change_nothing_with_mean_weights(world, loss) -> None:
    narrow = world.method("gaussian", width=16)
    weight_of = {"mean": 1.0, "sum": 2.0, "per_dim": 1.0}
    size = world.vectors[0].shape[1]
    single = world.vectors[0]
    for how, factor in weight_of.items():
        world.vectors = [single]
        one = world.method("gaussian", width=16, teacher_weight=how)
        before = loss(terms_of(world, one))
        world.vectors = [torch.cat([single, single], 1)]
        wide = world.method("gaussian", width=16, teacher_weight=how)
        with torch.no_grad():
            pairs = list(zip(one.kernels.stacks[0].weights, wide.kernels.stacks[0].weights, strict=True))
            biases = list(zip(one.kernels.stacks[0].biases, wide.kernels.stacks[0].biases, strict=True))
            for source, target in pairs + biases:
                if source.shape == target.shape:
                    target.copy_(source)
                else:
                    mean, spread = source.split(size, -1)
                    target.copy_(torch.cat([mean, mean, spread, spread], -1))
        assert loss(terms_of(world, wide)).item() == pytest.approx(factor * before.item(), rel=1e-5)
    assert narrow.weights == [1.0]


def test_terms_for_the_log_have_no_weight_and_no_gradient(world) -> None:
    terms = terms_of(world, world.method("gaussian", width=16))
    assert set(terms) == {"nll", "explained", "calibration", "plain_nll"}
    for name in ("explained", "calibration", "plain_nll"):
        assert terms[name].weight == 0 and not terms[name].values.requires_grad


def test_a_fitted_kernel_is_calibrated_and_explains(world) -> None:
    """Vectors that are a linear map of the student's plus noise of a known size."""
    torch.manual_seed(0)
    world.encoder.eval()
    with torch.no_grad():
        embedding = world.output(range(64)).embedding[0]
        clean = embedding @ torch.randn(12, 6)
        world.vectors = [clean / clean.std(0) + 0.5 * torch.randn(64, 6)]
    method = world.method("gaussian", width=32, depth=1)
    optimizer = torch.optim.Adam(method.parameters(), 5e-3)
    for _ in range(150):
        optimizer.zero_grad()
        terms = method(world.output(range(64)), world.signals(range(64)), world.batch(range(64)))
        terms["nll"].values.mean().backward()
        optimizer.step()
    assert 0.7 < float(terms["calibration"].values.mean()) < 1.3
    assert 0.6 < float(terms["explained"].values.mean()) < 1.0


@pytest.mark.parametrize("vectors", ["standardised", "raw"])
def test_constant_coordinates_are_left_out(world, vectors) -> None:
    """A teacher with dead units, one of the shared networks has 240 of 256, is as good as without them."""
    alive = world.vectors[0]
    with_dead = torch.cat([alive, torch.full((len(alive), 5), 0.25)], 1)
    mean, std = with_dead.mean(0), with_dead.std(0, correction=0)
    info = TeacherInfo("weak", with_dead.shape[1], mean=mean, std=std)
    world.vectors = [with_dead]
    for options in ({}, {"covariance": "triangular"}, {"components": 2}):
        method = world.method("gaussian", width=16, vectors=vectors, beta_nll=0, **options)
        method.build(world.student, [info], _sample(world))
        assert method.kernels.live(0).sum() == alive.shape[1]
        terms = terms_of(world, method)
        size = alive.shape[1]
        kernel = method.kernels(world.output(ROWS).embedding)[0]
        if not options:
            deviation = (0.5 * bounded(kernel.spread, "soft")).exp()
            log_prob = Normal(kernel.mean, deviation).log_prob(targets(world, method)[:, None])
            torch.testing.assert_close(terms["nll"].values, -log_prob[..., :size].mean(-1).squeeze(-1))
        terms["nll"].values.sum().backward()
        out = method.kernels.stacks[0].biases[-1].grad.flatten()
        assert out[size : size + 5].abs().max() == 0
        assert all(value.values.isfinite().all() for value in terms.values())


def _sample(world):
    from distilvec.methods.base import Sample

    with torch.no_grad():
        return Sample(world.output(range(64)), world.signals(range(64)))


def test_kernels_of_one_shape_are_one_stack_and_others_are_not() -> None:
    kernels = GaussianKernels(8, ["a", "b", "c"], [4, 6, 4], depth=2, hidden=16)
    assert kernels.members == [[0, 2], [1]]
    found = kernels(torch.randn(3, 5, 8))
    assert [tuple(kernel.mean.shape) for kernel in found] == [(3, 5, 1, 4), (3, 5, 1, 6), (3, 5, 1, 4)]
    # Each kernel is what a plain network with its weights gives.
    rows = torch.randn(5, 8)
    stack = kernels.stacks[0]
    states = rows
    for number, (weight, bias) in enumerate(zip(stack.weights, stack.biases, strict=True)):
        states = states @ weight[1] + bias[1]
        states = states.relu() if number < 2 else states
    torch.testing.assert_close(kernels(rows)[2].mean.squeeze(-2), states[..., :4])


def test_kernels_survive_saving(world, tmp_path) -> None:
    method = world.method("gaussian", width=16, keep_kernels=True, components=2)
    method.keep(tmp_path)
    assert has_kernels(tmp_path)
    loaded, more = GaussianKernels.load(tmp_path)
    assert more == {"bound": "soft"} and loaded.names == ["teacher0"]
    rows = torch.randn(4, 12)
    torch.testing.assert_close(loaded(rows)[0].mean, method.kernels(rows)[0].mean)
    torch.testing.assert_close(loaded.shift(0), method.kernels.shift(0))


def test_weights_of_teachers_are_shares(two_teachers) -> None:
    world = two_teachers
    infos = [TeacherInfo("a", world.vectors[0].shape[1], weight=3.0), TeacherInfo("b", world.vectors[1].shape[1])]
    method = world.method("gaussian", width=16)
    method.build(world.student, infos, _sample(world))
    assert method.weights == pytest.approx([0.75, 0.25])


def test_beta_does_not_go_with_mixtures() -> None:
    betas = [build_options("gaussian", options).beta for options in ({}, {"components": 2}, {"preset": "paper"})]
    assert betas == [1, 0, 0] and build_options("gaussian", {"covariance": "triangular"}).beta == 0
    with pytest.raises(DistilvecError, match="^gaussian: beta_nll .*not with 2 and diagonal"):
        build_options("gaussian", {"beta_nll": 0.5, "components": 2})


def test_code_preset_on_raw_unit_vectors_is_squared_error(world) -> None:
    """METHODS: with inverse deviations of at most e, unit vectors of 384 coordinates saturate the bound."""
    torch.manual_seed(1)
    wide = torch.nn.functional.normalize(torch.randn(64, 384), dim=-1)
    world.vectors = [wide]
    method = world.method("gaussian", preset="code")
    kernel = method.kernels(world.output(ROWS).embedding)[0]
    spread = torch.zeros_like(kernel.spread, requires_grad=True)
    optimizer = torch.optim.Adam([spread], 0.1)
    target = wide[list(ROWS)]
    for _ in range(200):
        optimizer.zero_grad()
        moved = kernel._replace(mean=torch.zeros_like(kernel.mean), spread=spread)
        values, _ = method.compare(moved, target, method.kernels.live(0))
        values.sum().backward()
        optimizer.step()
    assert float(torch.tanh(spread).mean()) > 0.95, "the deviation has reached its bound"


@pytest.mark.parametrize("options", [{}, {"bound": "tanh"}, {"components": 2}, {"vectors": "raw"}], ids=str)
def test_a_ridge_start_knows_what_a_linear_map_knows(world, options) -> None:
    """Before any training: the explained share of the best linear map, and deviations that fit what it leaves."""
    torch.manual_seed(0)
    world.encoder.eval()
    with torch.no_grad():
        embedding = world.output(range(64)).embedding[0]
        clean = embedding @ torch.randn(12, 6)
        world.vectors = [clean / clean.std(0) + 0.5 * torch.randn(64, 6)]
    terms = terms_of(world, world.method("gaussian", width=32, **options), range(64))
    assert 0.6 < terms["explained"].values.mean().item() < 0.9
    assert 0.55 < terms["calibration"].values.mean().item() < 1.4
    random = terms_of(world, world.method("gaussian", width=32, init="random", **options), range(64))
    assert random["explained"].values.mean().item() < 0.3


@pytest.mark.parametrize("name", ["gaussian", "multi_mse", "multi_cosine"])
def test_published_presets_start_from_nothing(name) -> None:
    assert build_options(name, {"preset": "paper"}).init == "random"
    assert build_options(name, {}).init == "ridge"


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_beta_weighs_each_coordinate_by_its_variance_without_a_gradient(world, beta) -> None:
    method = world.method("gaussian", width=16, beta_nll=beta)
    terms = terms_of(world, method)
    kernel = method.kernels(world.output(ROWS).embedding)[0]
    log_variance = bounded(kernel.spread, "soft")
    density = -Normal(kernel.mean, (0.5 * log_variance).exp()).log_prob(targets(world, method)[:, None])
    expected = density * log_variance.exp() ** beta
    torch.testing.assert_close(terms["nll"].values, expected.mean(-1).squeeze(-1))
    torch.testing.assert_close(terms["plain_nll"].values, density.mean(-1).squeeze(-1))
    assert terms["plain_nll"].weight == 0
    # With beta 1 the mean's gradient is that of half the squared error, whatever the predicted deviation.
    mean = kernel.mean.detach().requires_grad_()
    values, _ = method.compare(kernel._replace(mean=mean), targets(world, method), method.kernels.live(0))
    values.sum().backward()
    residual = kernel.mean.detach() - targets(world, method)[:, None]
    scale = log_variance.detach().exp() ** (beta - 1) / world.vectors[0].shape[1]
    torch.testing.assert_close(mean.grad, residual * scale, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("how", "expected"),
    [("mean", [1 / 2, 1 / 2]), ("sum", [5.0, 15.0]), ("per_dim", [5 / 20, 15 / 20])],
)
def test_what_a_teacher_weighs_by_its_width(two_teachers, how, expected) -> None:
    """Term weights of teachers of 5 and 15 coordinates; a term is a mean over its own."""
    torch.manual_seed(0)
    two_teachers.vectors = [torch.randn(64, 5), torch.randn(64, 15)]
    assert two_teachers.method("gaussian", width=16, teacher_weight=how).weights == pytest.approx(expected)
    weighed = two_teachers.method("multi_cosine", width=16, teacher_weight="sum").weights
    assert weighed == pytest.approx([1.0, 1.0]), "a cosine is no mean over coordinates"


def test_a_teacher_weighs_by_the_share_of_its_coordinates_that_vary(two_teachers) -> None:
    """1 / (K D_k) with D_k the whole width: five live coordinates of twenty do not drown a teacher of live ones."""
    torch.manual_seed(0)
    two_teachers.vectors = [torch.randn(64, 5), torch.randn(64, 20) * (torch.arange(20) < 5)]
    for name in ("gaussian", "multi_mse"):
        assert two_teachers.method(name, width=16).weights == pytest.approx([1 / 2, 1 / 8])
    assert two_teachers.method("multi_cosine", width=16).weights == pytest.approx([1 / 2, 1 / 2])
    assert two_teachers.method("gaussian", width=16, teacher_weight="per_dim").weights == pytest.approx([1 / 2, 1 / 2])


def test_calibration_is_one_where_the_model_is_right(world) -> None:
    """Targets drawn from the kernels' own distribution, diagonal, triangular and of two components."""
    generator = torch.Generator().manual_seed(3)
    for options in ({}, {"covariance": "triangular"}, {"components": 2}):
        method = world.method("gaussian", width=16, **options)
        if method.kernels.triangular:
            with torch.no_grad():
                method.kernels.factors[0].normal_(std=0.3, generator=generator)
        with torch.no_grad():
            kernel = method.kernels(torch.randn(1, 4000, 12, generator=generator))[0]
            deviation = (0.5 * bounded(kernel.spread, "soft")).exp()
            noise = torch.randn(deviation.shape, generator=generator)
            if kernel.factor is not None:  # residual U / deviation is white
                noise = torch.linalg.solve_triangular(kernel.factor.mT, noise.mT, upper=True).mT
            drawn = kernel.mean + deviation * noise
            parts = kernel.weights.exp() if kernel.weights is not None else torch.ones(1, 4000, 1)
            chosen = torch.multinomial(parts[0], 1, generator=generator)[None, ..., None]
            target = drawn.gather(-2, chosen.expand(*chosen.shape[:-1], drawn.shape[-1])).squeeze(-2)[0]
            _, seen = method.compare(kernel, target, method.kernels.live(0))
        assert seen["calibration"].mean().item() == pytest.approx(1, abs=0.05)
        if kernel.factor is not None:  # its marginal deviations are those of the draws
            own = ((drawn - kernel.mean) / deviation).squeeze(0).squeeze(-2)
            torch.testing.assert_close(own.var(0), method.kernels.marginal(0), rtol=0.1, atol=0)


def test_marginal_variances_are_those_of_the_covariance() -> None:
    kernels = GaussianKernels(4, ["one"], [6], depth=1, hidden=8, triangular=True)
    with torch.no_grad():
        kernels.factors[0].normal_(std=0.5, generator=torch.Generator().manual_seed(1))
    factor = kernels(torch.randn(2, 4))[0].factor.double()
    expected = torch.linalg.inv(factor @ factor.mT).diagonal()
    torch.testing.assert_close(kernels.marginal(0).double(), expected, rtol=1e-5, atol=1e-6)
    assert (kernels.marginal(0) >= 1 - 1e-6).all() and kernels.marginal(0).max() > 1.1
    # A coordinate that is constant tells nothing of the others but its value.
    kernels.live(0)[2] = False
    kept = [0, 1, 3, 4, 5]
    precision = (factor @ factor.mT)[kept][:, kept]
    torch.testing.assert_close(
        kernels.marginal(0)[kept].double(), torch.linalg.inv(precision).diagonal(), rtol=1e-5, atol=1e-6
    )
    assert kernels.marginal(0)[2] == 1
    assert GaussianKernels(4, ["one"], [6], depth=1, hidden=8).marginal(0).tolist() == [1.0] * 6


@pytest.mark.parametrize("name", ["gaussian", "multi_mse"])
def test_clipping_holds_rare_coordinates_and_leaves_the_rest(world, name) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(64, 6)
    vectors[:, 5] = 0
    vectors[3, 5] = 1.0  # nearly dead: eight deviations away where it lives
    world.vectors = [vectors]
    method = world.method(name, width=16, clip=4.0, init="random")
    target = targets(world, method)
    assert target[3, 5] > 7
    terms = terms_of(world, method)
    held, _ = method.compare(
        method.kernels(world.output(ROWS).embedding)[0], target.clamp(-4, 4), method.kernels.live(0)
    )
    torch.testing.assert_close(terms[method.term].values, held)
    free, _ = method.compare(method.kernels(world.output(ROWS).embedding)[0], target, method.kernels.live(0))
    assert (free[0, 3] > held[0, 3]) and torch.equal(free[0, 4:], held[0, 4:])
