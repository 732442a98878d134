"""Exported policies: for every algorithm and every kind of space they act like the agent, without rlexp."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp import Agent, exporting
from rlexp.envs import GymEnv
from rlexp.errors import ConfigError, ExportError
from rlexp.exporting import Exported, export, export_target
from rlexp.policy import Policy
from rlexp.prediction import Predictor
from rlexp.runner import Runner
from tests.algos.common import ALGOS, small_config
from tests.counting import COUNTING
from tests.masked import MASKED

IN_SHORT = {"bcq", "crossq", "iqn", "rainbow", "recurrent_ppo", "td3"}  # in `make test`; `make test-learning`: all


def trained(name: str, *changes: str, kind: str | None = None, obs: str = "vector") -> tuple[Policy, GymEnv]:
    """A policy whose weights are far from zero, so that observations matter to what it does."""
    runner = Runner(small_config(name, None, kind, obs, changes))
    policy = runner.policy()
    if policy.obs_normalizer is not None:
        rng = np.random.default_rng(0)
        for norm in policy.obs_normalizer.norms.values():
            norm.update(torch.from_numpy(rng.normal(3, 2, (50, *norm.shape)).astype(np.float32)))
    return policy, runner.env


def torch_program(path: Path) -> Any:
    return torch.export.load(path).module()


@pytest.mark.parametrize(
    "name", [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.learning) for name in ALGOS]
)
def test_every_algorithm_is_exported_and_acts_like_the_agent(name: str, tmp_path: Path) -> None:
    policy, env = trained(name)
    done = export(policy, env, tmp_path / "policy.pt2", "torch")
    assert done.compared == exporting.PLAYED + exporting.SAMPLED
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]
    assert all(part.requires_grad for part in policy.algo.parts().values() if isinstance(part, torch.nn.Parameter))


@pytest.mark.parametrize(
    ("kind", "obs"),
    [("multi_discrete", "dict"), ("multi_binary", "tuple"), ("unbounded", "multi_discrete")],
)
def test_every_space_is_exported_in_the_environments_own_terms(kind: str, obs: str, tmp_path: Path) -> None:
    normalize = [] if obs == "multi_discrete" else ["env.normalize_obs=true"]  # refused where all are integers
    policy, env = trained("ppo", *normalize, kind=kind, obs=obs)
    export(policy, env, tmp_path / "policy.pt2", "torch")
    program, predictor = torch_program(tmp_path / "policy.pt2"), Predictor(env, policy)
    predictor.space.seed(7)
    native = predictor.space.sample()
    parts = {
        "dict": lambda: {
            "image": native["image"],
            "inner/count": native["inner"]["count"],
            "inner/bits": native["inner"]["bits"],
            "vector": native["vector"],
        },
        "tuple": lambda: {"0": native[0], "1": native[1]},
    }
    given = parts[obs]() if obs in parts else native
    rows = torch.utils._pytree.tree_map(lambda leaf: torch.from_numpy(np.asarray(leaf)[None]), given)
    (action,) = program(rows)
    np.testing.assert_allclose(action[0].numpy(), predictor(native), atol=1e-5)


def test_a_recurrent_policy_takes_its_memory_and_gives_it_back(tmp_path: Path) -> None:
    policy, env = trained("recurrent_ppo", "algo.recurrence=gru")
    done = export(policy, env, tmp_path / "policy.pt2", "torch")
    assert [each["name"] for each in done.info["inputs"]] == ["obs", "carry"]
    program, predictor = torch_program(done.path), Predictor(env, policy)
    carry = torch.zeros(1, policy.algo.carry_size)
    rng = np.random.default_rng(0)
    actions = []
    for obs in rng.normal(size=(20, 3)).astype(np.float32):
        action, carry = program(torch.from_numpy(obs[None]), carry)
        actions.append(int(action[0]))
        assert actions[-1] == predictor(obs)
    torch.testing.assert_close(carry, predictor.carry)


def test_the_memory_of_exploring_is_no_input(tmp_path: Path) -> None:
    policy, env = trained("ddpg", "algo.exploration=ou")
    assert policy.algo.carry_size == 2
    export(policy, env, tmp_path / "policy.pt2", "torch")
    (action,) = torch_program(tmp_path / "policy.pt2")(torch.zeros(4, 3))
    assert action.shape == (4, 2)


def test_normalisation_and_rescaling_are_inside(tmp_path: Path) -> None:
    """Actions in [-1, 2] and [-2, 4]; worked out from the weights of the actor alone."""
    policy, env = trained("sac", "env.normalize_obs=true")
    export(policy, env, tmp_path / "policy.pt2", "torch")
    obs = np.array([[5.0, 1.0, -2.0], [900.0, 3.0, 3.0]], np.float32)
    (action,) = torch_program(tmp_path / "policy.pt2")(torch.from_numpy(obs))
    norm = policy.obs_normalizer.norms[""]  # type: ignore[union-attr]
    mean, var = norm.mean.numpy(), norm.var.numpy()
    x = np.clip((obs - mean) / np.sqrt(var + 1e-8), -10, 10)
    hidden, head = (
        [each.detach().numpy() for each in (layer.weight, layer.bias)] for layer in policy.algo.actor.layers
    )  # type: ignore[attr-defined]
    out = np.maximum(x @ hidden[0].T + hidden[1], 0) @ head[0].T + head[1]
    unit = np.tanh(out[:, :2])
    np.testing.assert_allclose(action.numpy(), [0, 1] + np.array([1, 3]) * unit, rtol=1e-4, atol=1e-5)


ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("rlexp", "gymnasium", "tests"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import json, torch
extra = {"rlexp.json": ""}
program = torch.export.load(sys.argv[1], extra_files=extra).module()
print(json.dumps([program(torch.tensor(json.loads(sys.argv[2])))[0].tolist(), json.loads(extra["rlexp.json"])]))
"""


def test_the_file_holds_torchs_own_operators_and_nothing_of_rlexp(tmp_path: Path) -> None:
    policy, env = trained("recurrent_ppo")
    export(policy, env, tmp_path / "policy.pt2", "torch")
    nodes = torch.export.load(tmp_path / "policy.pt2").graph.nodes
    called = {str(node.target) for node in nodes if node.op == "call_function"}
    assert all(name.startswith(("aten.", "<built-in function ")) for name in called), called
    with zipfile.ZipFile(tmp_path / "policy.pt2") as archive:
        naming = [name for name in archive.namelist() if b"rlexp" in archive.read(name).replace(b"rlexp/", b"")]
    assert [Path(name).name for name in naming] == ["rlexp.json"]


@pytest.mark.learning
def test_the_file_is_loaded_where_rlexp_is_not_installed(tmp_path: Path) -> None:
    policy, env = trained("dqn")
    export(policy, env, tmp_path / "policy.pt2", "torch", {"algo": "dqn"})
    obs = [[0.5, -1.0, 2.0], [100.0, 3.0, -7.0], [-3.0, 0.0, 0.0]]
    command = [sys.executable, "-W", "ignore", "-c", ALONE, str(tmp_path / "policy.pt2"), json.dumps(obs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    action, info = json.loads(done.stdout)
    assert action == [int(each) for each in Predictor(env, policy)([np.array(row, np.float32) for row in obs])]
    assert info["algo"] == "dqn"
    assert info["inputs"] == [{"name": "obs", "dtype": "float32", "shape": [3]}]
    assert info["outputs"] == [{"name": "action", "dtype": "int64", "shape": []}]


@pytest.mark.parametrize(
    ("name", "obs"),
    [
        ("recurrent_ppo", "dict"),
        *(pytest.param(name, "vector", marks=pytest.mark.learning) for name in sorted(IN_SHORT)),
    ],
)
def test_onnx_acts_like_the_agent(name: str, obs: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    policy, env = trained(name, "env.normalize_obs=true", obs=obs)
    capfd.readouterr()
    done = export(policy, env, tmp_path / "policy.onnx", "onnx", {"algo": name})
    assert capfd.readouterr() == ("", "")  # torch's exporter would tell of its steps
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]
    session = onnxruntime.InferenceSession(done.path)
    assert [each.name for each in session.get_inputs()] == [each["name"] for each in done.info["inputs"]]
    assert all(each.shape[0] == "batch" for each in (*session.get_inputs(), *session.get_outputs()))
    assert json.loads(session.get_modelmeta().custom_metadata_map["rlexp"])["algo"] == name


def test_a_file_that_acts_differently_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, env = trained("sac")
    native = exporting.PolicyProgram._native
    monkeypatch.setattr(exporting.PolicyProgram, "_native", lambda self, action: native(self, action * 0.99))
    with pytest.raises(ExportError, match="does not act like the agent on"):
        export(policy, env, tmp_path / "policy.pt2", "torch")
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_is_no_graph_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, env = trained("dqn")
    greedy = type(policy.algo).greedy
    monkeypatch.setattr(
        type(policy.algo), "greedy", lambda self, head, obs: greedy(self, head + float(head.sum().item() > 0), obs)
    )
    with pytest.raises(ExportError, match="DQN cannot be exported: its greedy policy is not one graph"):
        export(policy, env, tmp_path / "policy.pt2", "torch")
    assert list(tmp_path.iterdir()) == []


def test_the_target_says_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert export_target("onnx", "run") == (Path("run.onnx"), "onnx")
    assert export_target("torch", "run") == (Path("run.pt2"), "torch")
    assert export_target("a/b.onnx", "run") == (Path("a/b.onnx"), "onnx")
    with pytest.raises(ConfigError, match=r"to=onxx: a policy is exported to torch .* Did you mean onnx"):
        export_target("onxx", "run")
    (tmp_path / "run.pt2").touch()
    with pytest.raises(ConfigError, match=r"run\.pt2 exists already"):
        export_target("torch", "run")


def test_onnx_without_its_packages_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    with pytest.raises(ExportError, match=r"to=onnx needs onnxruntime: pip install 'rlexp\[onnx\]'"):
        export(*trained("dqn"), tmp_path / "policy.onnx", "onnx")


def test_an_agent_in_python_exports_what_it_is_now(tmp_path: Path) -> None:
    agent = Agent("algo=dqn", "env=gym", f"env.id={COUNTING}", "model.hidden=[16]")
    done: Exported = agent.export(tmp_path / "policy.pt2")
    obs = np.array([1.0, 2.0, 3.0], np.float32)
    assert int(torch_program(done.path)(torch.from_numpy(obs[None]))[0]) == agent.predict(obs)


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_impossible_actions_stay_impossible(algo: str, tmp_path: Path) -> None:
    """The environment fails when a forbidden action is taken; the mask is an input like any other."""
    kwargs = f"+env.kwargs={{tells: obs, multi: {str(algo == 'ppo').lower()}}}"
    agent = Agent(f"algo={algo}", "env=gym", f"env.id={MASKED}", kwargs, "model.hidden=[16]")
    done = agent.export(tmp_path / "policy.pt2")
    assert {each["name"] for each in done.info["inputs"]} == {"place", "action_mask"}
    masks = torch.eye(5).repeat(3, 1) if algo == "dqn" else torch.tensor([[0, 0, 1.0, 0, 1, 0, 0]])
    obs = {"action_mask": masks.to(torch.int8), "place": torch.randn(len(masks), 3)}
    inputs = {each["name"]: obs[each["name"]] for each in done.info["inputs"]}
    (action,) = torch_program(done.path)(inputs)
    assert action.tolist() == ([2, 3, 4, 5, 6] * 3 if algo == "dqn" else [[2, 1]])


def test_what_networks_do_not_see_is_no_input(tmp_path: Path) -> None:
    done = Agent("algo=dqn", "env=bit_flip", "model.hidden=[16]").export(tmp_path / "policy.pt2")
    assert [each["name"] for each in done.info["inputs"]] == ["desired_goal", "observation"]
