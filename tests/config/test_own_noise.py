"""A user's own noise on actions: composed, checked, trusted, resumed and scheduled like any other part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlexp import Agent
from rlexp.checkpoint import load_checkpoint
from rlexp.config.check import check_node
from rlexp.config.compose import compose, for_hydra
from rlexp.config.overrides import apply_overrides
from rlexp.config.trust import EVERYTHING, trusting
from rlexp.errors import ConfigError, RlexpError, UntrustedError
from rlexp.files import parse_config
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.sweeps.planning import labels
from rlexp.trainers.base import Interrupted
from rlexp.trainers.collecting import Collector
from tests.algos.test_compiling import tracing  # noqa: F401  (a fixture)
from tests.algos.test_exploration import explored, greedy, observations
from tests.algos.test_runs import assert_same_run, run_config, stop
from tests.security.hostile import command

ENV = ["tests"]  # the package of the environment, which is trusted in any case
PACKAGE = "own_noise_package"
MODULE = '''
from dataclasses import dataclass
import torch
from rlexp.algos.action_noise import ActionNoise
from rlexp.config.fields import Count

@dataclass(eq=False, kw_only=True)
class Held(ActionNoise):
    """Drawn anew every few steps: what was drawn is remembered, and for how long."""
    steps: Count = 3
    memory = 2

    def __call__(self, draw, memory, scale):
        held, left = memory.unbind(-1)
        held = torch.where(left == 0, draw[..., 0], held)
        left = torch.where(left == 0, self.steps, left) - 1
        return scale * held, torch.stack((held, left), -1)

@dataclass(eq=False, kw_only=True)
class Hasty(ActionNoise):
    """Asks what it remembers by a branch of Python."""
    memory = 1

    def __call__(self, draw, memory, scale):
        return (scale * draw[..., 0] if bool((memory == 0).all()) else 0 * draw[..., 0]), memory + 1
'''
ALGORITHM = """
from dataclasses import dataclass
from typing import Any
from rlexp.algos import TD3

@dataclass(eq=False, kw_only=True)
class Mine(TD3):
    exploration: Any = "pink"
"""
HELD = f"algo.exploration={{_target_: {PACKAGE}.Held, steps: 4}}"


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, which is on sys.path, and the working directory."""
    (tmp_path / f"{PACKAGE}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop(PACKAGE, None)


def forgotten() -> None:
    """As in another process, where nobody has imported the package."""
    sys.modules.pop(PACKAGE, None)


def test_it_is_written_in_one_piece_or_setting_by_setting() -> None:
    wanted = {"_target_": f"{PACKAGE}.Held", "steps": 5}
    target = f"algo.exploration._target_={PACKAGE}.Held"
    for typed in (
        [target, "algo.exploration.steps=5"],
        ["algo.exploration.steps=5", target],
        [f"+{target}", "+algo.exploration.steps=5"],
        [f"algo.exploration={{_target_:{PACKAGE}.Held,steps:5}}"],
        [f"algo.exploration={{_target_:{PACKAGE}.Held,steps:2}}", "algo.exploration.steps=5"],
    ):
        assert compose(["algo=td3", "env=pendulum", *typed])["algo"]["exploration"] == wanted
    assert compose(["algo=td3", target])["algo"]["exploration"]["steps"] == 3  # a default is kept with the run
    assert compose(["algo=td3", "algo.exploration=pink"])["algo"]["exploration"] == "pink"


TARGET = f"algo.exploration._target_={PACKAGE}.Held"
REFUSED = {
    f"{TARGET} algo.exploration.stepps=2": "algo.exploration.stepps: Held has no such setting. Did you mean steps?",
    f"{TARGET} +algo.exploration.stepps=2": "algo.exploration.stepps: Held has no such setting. Did you mean steps?",
    f"{TARGET} algo.exploration.steps=0": "algo.exploration.steps must be at least 1, not 0.",
    f"{TARGET} algo.exploration.steps=x": "algo.exploration.steps must be a whole number, not x.",
    f"algo.exploration._target_={PACKAGE}.Hold": (
        f"algo.exploration._target_={PACKAGE}.Hold: {PACKAGE} has no 'Hold'."
    ),
    "algo.exploration=pinc": ("algo.exploration must be one of gaussian, none, ou, pink, not pinc. Did you mean pink?"),
    "algo.exploration=brown": (
        "algo.exploration must be one of gaussian, none, ou, pink, not brown. One of your own is written "
        "{_target_: package.Class, …}."
    ),
    "algo.exploration.theta=0.5": (
        "algo.exploration must be a component, not {'theta': 0.5}: write "
        "{_target_: rlexp.algos.action_noise.OrnsteinUhlenbeckNoise, theta: 0.5} (see: rlexp list)."
    ),
    "algo=sac algo.exploration.steps=2": "algo.exploration: SAC has no such setting.",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_a_mistake_is_explained_like_any_other(typed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["algo=td3", *typed.split()])
    assert str(caught.value).startswith(REFUSED[typed])


def test_settings_that_it_leaves_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"algo: ou_theta has no effect with exploration=Held\. Use exploration=ou\."):
        Runner(run_config("td3", "replay", HELD, "algo.ou_theta=0.5"))


def test_it_is_added_to_actions_at_the_scale_of_its_schedule() -> None:
    """By hand: what was drawn first, times σ = 1 and then 0.5, and a new draw where the four steps are over."""
    schedule = "algo.schedules.exploration_noise={shape: linear, start: 1.0, end: 0.5}"
    runner = Runner(run_config("td3", "replay", HELD, schedule))
    algo = runner.policy().algo
    obs, carry, first = observations(algo, 5), None, None
    for step in range(5):
        algo.apply_schedules(0.0 if step < 2 else 1.0)
        act = explored(algo, obs, carry, seed=step)
        draw = torch.randn(5, 2, generator=torch.Generator().manual_seed(step))
        first = draw if step in (0, 4) else first
        expected = (greedy(algo, obs) + (1.0 if step < 2 else 0.5) * first).clip(-1, 1)
        torch.testing.assert_close(act.action, expected)
        memory = act.carry.view(5, 2, 2)
        assert torch.equal(memory[..., 0], first)
        assert (memory[..., 1] == (3, 2, 1, 0, 3)[step]).all()
        carry = act.carry


def test_its_memory_starts_anew_with_each_episode() -> None:
    runner = Runner(run_config("td3", "replay", HELD))
    policy = runner.policy()
    collector = Collector(runner.env, policy, seed=0)
    collector.start()
    ends = 0
    for _ in range(14):
        act = policy.act(collector.obs_tensor(), collector.carry, explore=True)
        step = collector.step(policy.env_action(act.action), act.carry)
        ended = torch.from_numpy(step.terminated | step.truncated)
        assert isinstance(collector.carry, Tensor)
        assert (collector.carry[ended] == 0).all()
        assert torch.equal(collector.carry[~ended], act.carry[~ended])
        ends += int(ended.sum())
    collector.close()
    assert ends > 2


def interrupted(path: Path, *changes: str) -> dict[str, Any]:
    """A run that was asked to stop amid an episode; its config."""
    config = run_config("td3", "replay", HELD, *changes)
    runner = Runner(config)
    stop(runner.trainer, 90, "signal")
    with pytest.raises(Interrupted):
        runner.train(path)
    return config


def test_a_run_with_it_resumes_exactly_if_its_package_is_trusted(tmp_path: Path) -> None:
    config = interrupted(tmp_path / "run")
    Runner(config).train(tmp_path / "whole")
    carry = load_checkpoint(tmp_path / "run" / "checkpoints" / "last").tree["loop"]["collector"]["carry"]
    assert carry.shape == (2, 2 * 2)
    assert (torch.as_tensor(carry).view(2, 2, 2)[..., 0] != 0).all()
    forgotten()
    with pytest.raises(UntrustedError, match=rf"algo\.exploration\._target_={PACKAGE}\.Held .* trust=\[{PACKAGE}\]"):
        resume_run(tmp_path / "run", trust=trusting(ENV))
    assert PACKAGE not in sys.modules
    resume_run(tmp_path / "run", trust=trusting([*ENV, PACKAGE]))
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_every_way_to_open_such_a_run_asks_for_its_package(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Runner(run_config("td3", "replay", HELD)).train(run)
    forgotten()
    ways = (
        ("eval", str(run), "episodes=1"),
        ("predict", str(run)),
        ("export", str(run), f"to={tmp_path / 'policy.pt2'}"),
    )
    for way in ways:
        with pytest.raises(RlexpError, match="not trusted"):
            command(*way, "trust=[tests]")
        assert PACKAGE not in sys.modules
    with pytest.raises(UntrustedError, match="not trusted"):
        Agent.load(run, trust=ENV)
    for way in ways:
        command(*way, f"trust=[tests,{PACKAGE}]")
    assert (tmp_path / "policy.pt2").is_file()
    assert Agent.load(run, trust=[*ENV, PACKAGE]).evaluate(episodes=2).returns


def test_a_resumed_run_takes_other_settings_of_it_or_another_noise(tmp_path: Path) -> None:
    run, budget = tmp_path / "run", 120
    interrupted(run)
    for change, kept in (
        ("algo.exploration.steps=2", {"_target_": f"{PACKAGE}.Held", "steps": 2}),
        ("algo.exploration=ou", "ou"),
        (HELD, {"_target_": f"{PACKAGE}.Held", "steps": 4}),
    ):
        budget += 20
        assert resume_run(run, [change, f"trainer.total_steps={budget}"], trust=EVERYTHING)["env_steps"] == budget
        assert parse_config((run / "config.yaml").read_bytes())["algo"]["exploration"] == kept
    config = run_config("td3", "replay", HELD)
    assert apply_overrides(config, ["algo.exploration=pink"])["algo"]["exploration"] == "pink"
    with pytest.raises(ConfigError, match=r"algo\.schedules is a group of settings"):
        apply_overrides(config, ["algo.schedules=3"])


def test_memory_of_another_noise_is_not_taken_over_even_if_it_is_as_large() -> None:
    pink = "algo.exploration={_target_: rlexp.algos.action_noise.PinkNoise, octaves: 2}"
    collectors = []
    for noise in (pink, HELD):
        runner = Runner(run_config("td3", "replay", noise))
        collectors.append(Collector(runner.env, runner.policy(), seed=0))
        collectors[-1].start()
    one, other = collectors
    act = one.policy.act(one.obs_tensor(), one.carry, explore=True)
    one.carry = act.carry
    state = one.state_dict()
    other.load_state_dict(state)
    assert other.carry is None
    one.load_state_dict(state)
    assert torch.equal(one.carry, act.carry)
    one.carry = None
    one.load_state_dict({name: state[name] for name in ("envs", "carry")})  # as runs of before saved it
    assert torch.equal(one.carry, act.carry)
    for collector in collectors:
        collector.close()


def test_a_trusted_algorithm_that_declares_the_setting_again_brings_no_strange_noise(package: Path) -> None:
    (package / "own_algorithm.py").write_text(ALGORITHM)
    sys.modules.pop("own_algorithm", None)
    node = {"_target_": "own_algorithm.Mine", "exploration": {"_target_": f"{PACKAGE}.Held"}}
    forgotten()
    with pytest.raises(UntrustedError, match=rf"algo\.exploration\._target_={PACKAGE}\.Held"):
        check_node("algo", node, trusting(["own_algorithm"]))
    assert PACKAGE not in sys.modules
    assert check_node("algo", node, trusting(["own_algorithm", PACKAGE]))["exploration"]["steps"] == 3


def test_noise_that_cannot_be_compiled_is_told_so(tracing: None, tmp_path: Path) -> None:  # noqa: F811
    hasty = f"algo.exploration={{_target_: {PACKAGE}.Hasty}}"
    Runner(run_config("td3", "replay", hasty)).train(tmp_path / "eager")
    with pytest.raises(ConfigError, match=r"TD3\.explore cannot be compiled: .*\. Use compile=false\.$"):
        Runner(run_config("td3", "replay", hasty, "compile=true")).train(tmp_path / "compiled")


def test_another_noise_comes_too_late_for_an_algorithm_that_is_made() -> None:
    algo = Runner(run_config("td3", "replay", HELD)).algo
    with pytest.raises(ConfigError, match=r"algo\.exploration is chosen when the algorithm is made"):
        algo.exploration = "pink"


@pytest.mark.parametrize("octaves", [0, 25, 10**9])
def test_pink_noise_has_few_octaves(octaves: int) -> None:
    pink = f"algo.exploration={{_target_: rlexp.algos.action_noise.PinkNoise, octaves: {octaves}}}"
    with pytest.raises(ConfigError, match=r"algo\.exploration\.octaves must be at (least 1|most 24), not"):
        compose(["algo=td3", pink])


def test_the_jobs_of_a_sweep_over_its_settings_are_called_as_they_were_typed() -> None:
    typed = [for_hydra(["algo=td3", TARGET, f"algo.exploration.steps={steps}"]) for steps in (1, 2)]
    assert labels(typed) == ["algo.exploration.steps=1", "algo.exploration.steps=2"]
