"""The kinds of noise on actions: numbers worked out by hand, spectra in closed form, and what no noise may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rlexp.compiling
from rlexp.algos.action_noise import ActionNoise, GaussianNoise, NoNoise, OrnsteinUhlenbeckNoise, PinkNoise
from rlexp.config.check import build_part
from rlexp.config.component import REGISTRY
from rlexp.errors import ConfigError
from rlexp.runner import Runner
from tests.algos.common import small_algo, small_config
from tests.algos.test_exploration import explored, observations


def column(*values: float) -> Tensor:
    """[N, 1, 1]: one dimension of an action, one number for it."""
    return torch.tensor(values).view(-1, 1, 1)


def close(found: Tensor, *expected: float) -> None:
    torch.testing.assert_close(found.flatten(), torch.tensor(expected))


def test_every_name_is_one_kind() -> None:
    kinds = {"none": NoNoise, "gaussian": GaussianNoise, "ou": OrnsteinUhlenbeckNoise, "pink": PinkNoise}
    assert REGISTRY["exploration"] == kinds
    for name, cls in kinds.items():
        assert type(build_part("algo.exploration", "exploration", name)) is cls


def test_gaussian_noise_is_its_draw_times_its_scale() -> None:
    noise, memory = GaussianNoise()(column(2.0, -1.0), torch.zeros(2, 1, 0), 0.25)
    close(noise, 0.5, -0.25)
    assert noise.shape == (2, 1)
    assert memory.shape == (2, 1, 0)


def test_no_noise_is_nought() -> None:
    noise, _ = NoNoise()(torch.zeros(2, 3, 0), torch.zeros(2, 3, 0), 5.0)
    assert torch.equal(noise, torch.zeros(2, 3))


def test_an_ornstein_uhlenbeck_process_wanders_and_returns() -> None:
    process = OrnsteinUhlenbeckNoise(theta=0.25)
    # θ 0.25, σ 0.5: 0 -> 0.5·(2, −1) = (1, −0.5) -> 0.75·(1, −0.5) + 0.5·(0, 4) = (0.75, 1.625)
    noise, memory = process(column(2.0, -1.0), column(0.0, 0.0), 0.5)
    close(noise, 1.0, -0.5)
    close(memory, 1.0, -0.5)
    close(process(column(0.0, 4.0), memory, 0.5)[0], 0.75, 1.625)
    close(OrnsteinUhlenbeckNoise(theta=1.0)(column(0.0, 4.0), memory, 0.5)[0], 0.0, 2.0)  # forgets everything


def test_pink_noise_is_a_sum_of_processes_that_begin_in_their_long_run() -> None:
    pink = PinkNoise(octaves=2)  # τ = 1/2 and 1: a = e⁻² and e⁻¹
    noise, memory = pink(torch.tensor([[[1.0, 3.0]]]), torch.zeros(1, 1, 2), 0.5)
    close(memory, 1.0, 3.0)
    close(noise, 0.5 * 4 / math.sqrt(2))
    noise, memory = pink(torch.tensor([[[-1.0, 2.0]]]), memory, 0.5)
    # e⁻² = 0.135335, √(1 − e⁻⁴) = 0.990800; e⁻¹ = 0.367879, √(1 − e⁻²) = 0.929873
    fast, slow = 0.135335 * 1 - 0.990800, 0.367879 * 3 + 0.929873 * 2
    torch.testing.assert_close(memory.flatten(), torch.tensor([fast, slow]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        noise.flatten(), torch.tensor([0.5 * (fast + slow) / math.sqrt(2)]), rtol=1e-5, atol=1e-5
    )


def path_of(noise: ActionNoise, rows: int, steps: int, scale: float = 1.0) -> np.ndarray:
    """The noise of so many episodes from their start, [T, N]."""
    generator, memory = torch.Generator().manual_seed(0), torch.zeros(rows, 1, noise.memory)
    path = []
    for _ in range(steps):
        value, memory = noise(torch.randn(rows, 1, noise.draws, generator=generator), memory, scale)
        path.append(value[:, 0].numpy())
    return np.stack(path)


TAU = 2.0 ** np.arange(-1, 9)  # of the ten processes: ½, 1, 2, … 256 steps


def test_pink_noise_has_its_scale_and_its_correlations_from_the_first_step_on() -> None:
    x = path_of(PinkNoise(), 40_000, 33, scale=0.3)
    for step in (0, 1, 5, 32):
        assert x[step].std() == pytest.approx(0.3, rel=0.015)
        assert x[step].mean() == pytest.approx(0, abs=0.006)
    for start, lag in ((0, 1), (0, 4), (0, 32), (16, 16)):
        correlation = np.exp(-lag / TAU).mean()
        assert np.corrcoef(x[start], x[start + lag])[0, 1] == pytest.approx(correlation, abs=0.015)


def pink_density(frequency: np.ndarray) -> np.ndarray:
    """Of the stationary sum, from its covariances Σ_k e^(−|j| / τ_k) / K, which a geometric series sums up."""
    a = np.exp(-1 / TAU)[:, None]
    z = a * np.exp(-2j * np.pi * frequency)
    return np.asarray((1 + 2 * (z / (1 - z)).real).mean(0))


def test_the_power_of_pink_noise_falls_as_one_over_the_frequency() -> None:
    steps = 2048
    x = path_of(PinkNoise(), 400, steps)
    window = np.hanning(steps)[:, None]
    power = (np.abs(np.fft.rfft(x * window, axis=0)) ** 2).mean(1) / (window**2).sum()
    frequency = np.fft.rfftfreq(steps)
    edges = 2.0 ** np.arange(-9.5, -1.0, 0.5)  # half octaves, from periods of 724 steps to those of 3
    centres, measured, expected = [], [], []
    for low, high in pairwise(edges):
        inside = (frequency >= low) & (frequency < high)
        centres.append(frequency[inside].mean())
        measured.append(power[inside].mean())
        expected.append(pink_density(frequency[inside]).mean())
    np.testing.assert_allclose(measured, expected, rtol=0.15)
    slope = np.polyfit(np.log(centres), np.log(measured), 1)[0]
    assert slope == pytest.approx(-1, abs=0.05)
    closed = np.geomspace(2.0**-10, 0.5, 400)
    slope, offset = np.polyfit(np.log(closed), np.log(pink_density(closed)), 1)
    assert slope == pytest.approx(-1, abs=0.05)
    decibels = 10 / math.log(10) * np.abs(np.log(pink_density(closed)) - slope * np.log(closed) - offset)
    assert decibels.max() < 1


@pytest.mark.parametrize("settings", ["gaussian", "ou", "pink", f"{{_target_: {__name__}.Swinging, beat: 3}}"])
def test_compiled_noise_is_the_eager_one_in_one_graph(settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlexp.compiling, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    eager, compiled = (small_algo("td3", f"algo.exploration={settings}", compiled=flag) for flag in (False, True))
    obs, left, right = observations(eager, 4), None, None
    for seed in range(4):
        one, two = explored(eager, obs, left, seed), explored(compiled, obs, right, seed)
        torch.testing.assert_close(two.action, one.action)
        if one.carry is not None:
            torch.testing.assert_close(two.carry, one.carry)
            assert one.carry.shape == (4, eager.carry_size)
        left, right = one.carry, two.carry
    assert len(compiled.explore.graphs) == 1  # type: ignore[attr-defined]
    torch._dynamo.reset()


class Swinging(ActionNoise):
    """Not a dataclass, and without chance: described by its constructor, it draws nothing."""

    draws = 0
    memory = 1

    def __init__(self, beat: int = 2) -> None:
        self.beat = beat

    def __call__(self, draw: Tensor, memory: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        return scale * torch.sin(2 * math.pi * memory[..., 0] / self.beat), (memory + 1) % self.beat


def test_a_noise_may_draw_nothing_and_be_a_plain_class() -> None:
    algo = small_algo(
        "ddpg", f"algo.exploration={{_target_: {__name__}.Swinging, beat: 4}}", "algo.exploration_noise=0.5"
    )
    obs, carry, path = observations(algo, 1), None, []
    still = algo.act(obs, None, explore=False, generator=torch.Generator()).action
    for seed in range(4):
        act = explored(algo, obs, carry, seed)
        carry = act.carry
        path.append(act.action - still)
    for moved, expected in zip(path, (0.0, 0.5, 0.0, -0.5)):
        torch.testing.assert_close(moved, torch.full_like(moved, expected), atol=1e-6, rtol=0)


def test_in_python_it_may_be_made_already() -> None:
    from rlexp.algos import TD3

    noise = OrnsteinUhlenbeckNoise(theta=0.5)
    assert TD3(exploration=noise).action_noise is noise


# ---- what no noise may be


def noise_of(answer: Callable[..., Any], draws: Any = 1, memory: Any = 1) -> type[ActionNoise]:
    return type("Odd", (ActionNoise,), {"draws": draws, "memory": memory, "__call__": answer})


def forgetful(self: Any, draw: Tensor, memory: Tensor, scale: Any) -> Any:
    self.process = getattr(self, "process", 0) + draw
    return scale * self.process[..., 0], memory


def restless(self: Any, draw: Tensor, memory: Tensor, scale: Any) -> Any:
    return scale * torch.randn(draw.shape[:-1]), memory


def counting(self: Any, draw: Tensor, memory: Tensor, scale: Any) -> Any:
    self.calls = getattr(self, "calls", 0) + 1
    return scale * draw[..., 0], memory


def adding_up(self: Any, draw: Tensor, memory: Tensor, scale: Any) -> Any:
    self.seen = getattr(self, "seen", torch.zeros(5_000)) + 1
    return scale * draw[..., 0], memory


def meddling(self: Any, draw: Tensor, memory: Tensor, scale: Any) -> Any:
    memory += draw
    return scale * memory[..., 0], memory


MUST = (
    "must answer a draw [3, 2, 1], a memory [3, 2, 1] and a scale with (noise [3, 2], memory [3, 2, 1]), both float32."
)
IMPURE = (
    "answers the same draw and memory with other numbers, or changes them or itself. All its chance must be the draw, "
    "and all it remembers the memory that it returns."
)
ODD = {
    "one part": (noise_of(lambda self, draw, memory, scale: scale * draw[..., 0]), MUST),
    "no tensors": (noise_of(lambda self, draw, memory, scale: (0.0, memory)), MUST),
    "another shape": (noise_of(lambda self, draw, memory, scale: (scale * draw, memory)), MUST),
    "another memory": (noise_of(lambda self, draw, memory, scale: (scale * draw[..., 0], memory[..., 0])), MUST),
    "another type": (noise_of(lambda self, draw, memory, scale: (scale * draw[..., 0].double(), memory)), MUST),
    "state of its own": (noise_of(forgetful), IMPURE),
    "chance of its own": (noise_of(restless), IMPURE),
    "in place": (noise_of(meddling), IMPURE),
    "a count of its own": (noise_of(counting), IMPURE),
    "a tensor of its own": (noise_of(adding_up), IMPURE),
    "a number that is none": (
        noise_of(restless, draws=-1),
        "draws must be a whole number from 0, not -1.",
    ),
    "a memory that is none": (
        noise_of(restless, memory="all"),
        "memory must be a whole number from 0, not 'all'.",
    ),
    "an error": (
        noise_of(lambda self, draw, memory, scale: 1 / 0),
        "fails on a draw [3, 2, 1], a memory [3, 2, 1] and a scale: ZeroDivisionError: division by zero.",
    ),
    "other arguments": (
        noise_of(lambda self, draw, scale: draw),
        "takes other arguments than it is given: __call__(self, draw: Tensor, memory: Tensor, scale: float | Tensor)",
    ),
    "no noise": (nothing := type("Odd", (), {}), "must derive from rlexp.algos.action_noise.ActionNoise."),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_noise_is_refused_before_anything_runs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cls, says = ODD[what]
    cls.__module__ = __name__
    monkeypatch.setitem(globals(), "Odd", cls)
    config = small_config("td3", changes=(f"algo.exploration={{_target_: {__name__}.Odd}}",))
    with pytest.raises(ConfigError) as caught:
        Runner(config)
    message = str(caught.value)
    assert message.startswith("algo.exploration: Odd")
    assert says in message
    assert message.endswith("See docs/extending.md.")
    assert "\n" not in message


def test_noise_that_there_is_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = noise_of(restless, draws=10**12)
    cls.__module__ = __name__
    monkeypatch.setitem(globals(), "Odd", cls)
    with pytest.raises(ConfigError, match=r"^algo\.exploration: Odd needs 2\.4e\+04 GB, but only "):
        Runner(small_config("td3", changes=(f"algo.exploration={{_target_: {__name__}.Odd}}",)))


def test_an_abstract_noise_cannot_be_made() -> None:
    config = small_config("td3", changes=("algo.exploration={_target_: rlexp.algos.action_noise.ActionNoise}",))
    with pytest.raises(ConfigError, match=r"algo\.exploration: .*ActionNoise cannot be constructed: .*abstract"):
        Runner(config)
