"""The Python side: one class per algorithm, all with the same lifecycle.

agent = PPO("algo.clip_range=0.1", env="cartpole", seed=3)
agent.learn(); agent.evaluate(episodes=20); agent.predict(obs)
agent.save(path); agent = PPO.load(path)        # the policy, to act with
agent = PPO.load(run_dir); agent.resume()       # the run, to go on with
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from rlexp.checkpoint import Checkpoint, save_checkpoint
from rlexp.config.arguments import EnvFactory, check_factory, check_learn, overrides_of
from rlexp.config.compose import compose, register
from rlexp.config.trust import EVERYTHING, Trust, trusting
from rlexp.errors import ConfigError, EnvError, RunError
from rlexp.evaluation import Evaluation, Evaluator
from rlexp.loading import load
from rlexp.policy import Policy
from rlexp.prediction import Predictor
from rlexp.resuming import resume_run
from rlexp.runner import Runner
from rlexp.runs import run_path
from rlexp.video import open_video

if TYPE_CHECKING:
    from rlexp.exporting import Exported


class Agent:
    """An algorithm with everything around it. Use the named classes: ``from rlexp import PPO, SAC, …``."""

    algo: ClassVar[str | None] = None  # name of the config in conf/algo; None: whatever the overrides choose

    def __init__(self, *overrides: str, env: str | EnvFactory | None = None, **settings: Any) -> None:
        """Compose from overrides as on the command line.

        ``env`` is a choice of ``rlexp list``, a Gymnasium id, or a function that makes an environment; ``settings`` are
        those at the top of a config: seed, name, device, compile, threads, precision, progress.
        """
        register()
        given = overrides_of(type(self).__name__, overrides, env, settings, self.algo)
        self._begin(compose(given), EVERYTHING, None if isinstance(env, str) else env)
        if self.algo and self._runner.algo_name != self.algo:
            raise ConfigError(
                f"{type(self).__name__} cannot be made with algo={self._runner.algo_name}. Use rlexp.Agent(…) for that."
            )

    def _begin(
        self, config: dict[str, Any], trust: Trust, env: EnvFactory | None, runner: Runner | None = None
    ) -> None:
        self.config = config
        self.summary: dict[str, Any] | None = None
        self.run_dir: Path | None = None  # where the run lies once it has begun
        self._trust, self._env_factory = trust, env
        self._runner = runner or Runner(config, trust=trust, env_factory=env)  # refuses what cannot work
        self._checkpoint: Checkpoint | None = None
        self._policy: Policy | None = None
        self._predictor: Predictor | None = None

    def __repr__(self) -> str:
        state = "untrained"
        if self.run_dir is not None:
            state = f"run {self.run_dir}"
        elif self._checkpoint is not None:
            state = f"policy {self._checkpoint.path}"
        runner = self._runner
        return f"<{type(self).__name__}: {runner.algo_name} in {runner.spec.id}, seed {runner.seed}, {state}>"

    # ---- lifecycle

    def learn(self, run_dir: Path | str | None = None, **settings: Any) -> Self:
        """Train from the beginning; ``run_dir`` is a new directory, by default ``outputs/<name>``.

        The budget is a setting of the agent, ``trainer.total_steps``; ``settings`` are answered with where they belong.
        """
        check_learn(type(self).__name__, run_dir, settings, self.config)
        self._refuse_policy_file()
        if self.run_dir is not None:
            raise RunError("This agent has been trained already. Continue with resume(), or make a new agent.")
        path = Path(run_dir or Path("outputs") / self.config["name"]).absolute()
        runner = Runner(self.config, trust=self._trust, env_factory=self._env_factory)
        try:
            self.summary = runner.train(path, ["python"])
        finally:
            if hasattr(runner.trainer, "work"):  # otherwise nothing began, and the directory may be another run's
                self.run_dir = path
                self._adopt(runner)
        return self

    def resume(self, *overrides: str) -> Self:
        """Continue a run exactly where it stopped, or extend it: ``agent.resume("trainer.total_steps=200_000")``.

        The run is the one that :meth:`learn` made, or a run directory given to :meth:`load`.
        """
        self._refuse_policy_file()
        if self.run_dir is None:
            raise RunError("There is no run to resume yet: call learn() first.")
        self.summary = resume_run(self.run_dir, overrides, trust=self._trust, env_factory=self._env_factory)
        loaded = load(self.run_dir, trust=self._trust, env_factory=self._env_factory)
        self.config, self._checkpoint = loaded.checkpoint.config, loaded.checkpoint
        self._runner, self._policy, self._predictor = loaded.runner, None, None
        return self

    def evaluate(
        self, episodes: int = 20, *, deterministic: bool | None = None, seed: int = 0, video: Path | str | None = None
    ) -> Evaluation:
        """Play whole episodes with the present policy; ``video`` is a file, .mp4 or .gif, to show them in.

        ``deterministic``: greedy or sampled actions; None: as in training, greedily unless it was told otherwise.
        """
        greedy = self._runner.evaluates_greedily if deterministic is None else deterministic
        film = None if video is None else open_video(Path(video))
        evaluator = Evaluator(self._runner.env, None if film is None else "rgb_array")
        try:
            with film or nullcontext():
                return evaluator(self.policy, episodes, seed=seed, deterministic=greedy, video=film)
        finally:
            evaluator.close()

    def predict(self, obs: Any, *, deterministic: bool = True, reset: bool = False) -> Any:
        """The action for one observation, or a list of actions for several.

        ``reset``: they begin new episodes. A recurrent policy remembers those before; to others it makes no difference.
        """
        if self._predictor is None:
            self._predictor = Predictor(self._runner.env, self.policy, self.config["seed"])
        if reset:
            self._predictor.reset()
        return self._predictor(obs, deterministic=deterministic)

    def save(self, path: Path | str) -> Path:
        """Write the present policy, with its config and normalisers, as a checkpoint directory of its own.

        It is for acting: evaluate and predict. To train further, keep the run directory: ``load(run_dir).resume()``.
        """
        tree = {"policy": self.policy.state_dict(), "spec": self._runner.spec.to_dict()}
        return save_checkpoint(Path(path).absolute(), tree, self.config)

    def export(self, path: Path | str) -> Exported:
        """Write the present greedy policy as a program that needs no rlexp: ``policy.pt2`` (torch) or ``policy.onnx``.

        It takes the environment's observations and gives its actions, and was compared with this agent.
        """
        from rlexp.exporting import export, export_target

        target, kind = export_target(str(path), "policy")
        origin = {"algo": self._runner.algo_name, "env": self._runner.spec.id}
        return export(self.policy, self._runner.env, target, kind, origin)

    @classmethod
    def load(
        cls, path: Path | str, *, checkpoint: str = "last", trust: Iterable[str] = (), env: EnvFactory | None = None
    ) -> Self:
        """Open a run directory (or the name of one below outputs/), to act or to resume, or what :meth:`save` wrote.

        ``trust`` names packages of yours that it may execute; ``env`` is the function that made the environment, if one
        did.
        """
        check_factory(f"{cls.__name__}.load", env)
        register()
        try:
            loaded = load(run_path(path), which=checkpoint, trust=trusting(trust), env_factory=env)
        except EnvError as error:
            if env is not None:
                raise
            raise EnvError(f"{error} If a function in Python made it, pass that again: load(…, env=…).") from error
        if cls.algo and loaded.runner.algo_name != cls.algo:
            raise ConfigError(f"{path} holds {loaded.runner.algo_name}, not {cls.algo}. Load it with rlexp.Agent.load.")
        agent = cls.__new__(cls)
        agent._begin(loaded.checkpoint.config, trusting(trust), env, loaded.runner)
        agent._checkpoint = loaded.checkpoint
        agent.run_dir = loaded.run_dir.path if loaded.run_dir is not None else None
        return agent

    # ---- inside

    @property
    def policy(self) -> Policy:
        """The policy of now: fresh, trained or loaded."""
        if self._policy is None:
            saved = self._checkpoint
            self._policy = self._runner.policy(saved.tree["policy"], saved.path) if saved else self._runner.policy()
        return self._policy

    def _refuse_policy_file(self) -> None:
        if self.run_dir is None and self._checkpoint is not None:
            raise RunError(
                f"{self._checkpoint.path} holds a policy to act with, not a run, so it cannot be trained further. "
                "Load the run's directory (outputs/…) and call resume() to continue exactly."
            )

    def _adopt(self, runner: Runner) -> None:
        """Go on with the policy that a run has just trained."""
        self._runner, self._predictor = runner, None
        self._policy = getattr(runner.trainer, "policy", None)


def agent_class(algo: str, name: str, doc: str) -> type[Agent]:
    """The public class of one algorithm."""
    return type(name, (Agent,), {"algo": algo, "__doc__": doc, "__module__": "rlexp"})
