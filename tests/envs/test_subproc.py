"""What can go wrong with worker processes, and what they must not have."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlexp.envs import GymEnv
from rlexp.errors import EnvError
from tests.counting import CountingEnv
from tests.envs.common import counting, play, random_actions, same_steps

ROOT = Path(__file__).parents[2]


class Witness(gym.Env):
    """Observes the process it lives in: torch imported, threads allowed, the test's main module imported."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        main = getattr(sys.modules.get("__mp_main__"), "__file__", None)
        seen = ["torch" in sys.modules, os.environ.get("OMP_NUM_THREADS") == "1", main is not None]
        return np.array(seen, np.float32), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


def pids(env):
    return [worker.process.pid for worker in env._workers]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(numbers, seconds=20.0):
    deadline = time.monotonic() + seconds
    while any(map(alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, numbers))


def test_workers_have_one_thread_and_neither_torch_nor_the_main_module():
    import torch  # noqa: F401  here, because workers import this module for the class above

    before = os.environ.get("OMP_NUM_THREADS")
    env = GymEnv(id="witness", num_envs=2, vectorization="subprocess", workers=2)
    env.factory = Witness
    vec = env.build(seed=0)
    np.testing.assert_array_equal(vec.reset(), [[0, 1, 0]] * 2)
    assert os.environ.get("OMP_NUM_THREADS") == before
    vec.close()


@pytest.mark.parametrize(("num_envs", "workers", "shares"), [(5, 2, [3, 2]), (2, 8, [1, 1]), (4, 1, [4])])
def test_environments_are_shared_out_evenly(num_envs, workers, shares):
    config = counting("subprocess", num_envs=num_envs)
    config.workers = workers
    env = config.build(seed=0)
    assert [worker.count for worker in env._workers] == shares
    env.close()


def test_an_environment_that_raises_is_reported_with_its_last_line_and_exit_code():
    env = counting("subprocess", length=9, crash_at=3).build(seed=0)
    env.reset()
    numbers = pids(env)
    play(env, random_actions(env, 2))
    with pytest.raises(
        EnvError, match=r"environments 0 to 1 failed \(exit code 1\): RuntimeError: crashed at step 3"
    ) as e:
        env.step(np.zeros(3, np.int64))
    assert "Traceback" in e.value.__notes__[0]
    assert gone(numbers)
    with pytest.raises(EnvError, match="closed"):
        env.step(np.zeros(3, np.int64))
    env.close()


def test_a_worker_that_exits_is_reported_with_its_code():
    env = counting("subprocess", length=9, crash_at=2, crash="exit").build(seed=0)
    env.reset()
    play(env, random_actions(env, 1))
    with pytest.raises(
        EnvError, match=r"environments 0 to 1 died with exit code 7\. env.vectorization=sync env.workers=null"
    ):
        env.step(np.zeros(3, np.int64))


def test_a_worker_that_is_killed_is_reported_with_the_signal():
    env = counting("subprocess").build(seed=0)
    env.reset()
    numbers = pids(env)
    os.kill(numbers[1], signal.SIGKILL)
    assert gone(numbers[1:])
    with pytest.raises(EnvError, match=r"environment 2 died with exit code -9 \(SIGKILL, perhaps out of memory\)"):
        env.step(np.zeros(3, np.int64))
    assert gone(numbers)


def test_an_environment_that_cannot_be_made_in_the_worker_gives_its_own_message():
    config = counting("subprocess")
    config.spec()
    config.kwargs = {"lenght": 3}
    with pytest.raises(EnvError, match=r"cannot be made with env.kwargs=\{'lenght': 3\}"):
        config.build(seed=0)


def test_signals_meant_for_the_parent_do_not_reach_the_environments():
    env = counting("subprocess").build(seed=0)
    env.reset()
    for pid in pids(env):
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.05)
    assert env.step(np.zeros(3, np.int64)).obs.shape == (3, 3)
    env.close()


def test_closing_ends_the_workers_and_may_be_repeated():
    env = counting("subprocess").build(seed=0)
    env.reset()
    numbers = pids(env)
    env.close()
    env.close()
    assert gone(numbers)


def test_closing_does_not_wait_for_a_stuck_worker(monkeypatch):
    monkeypatch.setattr("rlexp.envs.subproc._CLOSE_SECONDS", 0.2)
    env = counting("subprocess").build(seed=0)
    env.reset()
    numbers = pids(env)
    os.kill(numbers[0], signal.SIGSTOP)
    env.close()
    assert gone(numbers)


def test_an_interrupted_step_cannot_be_mistaken_for_a_finished_one(monkeypatch):
    env = counting("subprocess", length=20).build(seed=0)
    env.reset()
    actions = random_actions(env, 8)
    play(env, actions[:3])
    state = env.snapshot()
    wanted = play(env, actions[3:])
    env.restore(state)

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(env, "_replies", interrupt)
        with pytest.raises(KeyboardInterrupt):
            env.step(actions[3])
    for attempt in (lambda: env.step(actions[3]), env.snapshot):
        with pytest.raises(EnvError, match="interrupted"):
            attempt()
    env.restore(state)
    assert same_steps(wanted, play(env, actions[3:]))
    env.close()


def test_a_factory_that_cannot_be_sent_says_what_to_do():
    env = GymEnv(id="mine", vectorization="subprocess")
    env.factory = lambda: CountingEnv()
    with pytest.raises(EnvError, match=r"top level of a module, or use env\.vectorization=sync env\.workers=null"):
        env.build(seed=0)


def test_a_registration_of_this_process_reaches_the_workers(monkeypatch):
    entry = gym.envs.registration.EnvSpec("OnlyHere-v0", "tests.counting:CountingEnv", kwargs={"length": 2})
    monkeypatch.setitem(gym.registry, "OnlyHere-v0", entry)
    env = GymEnv(id="OnlyHere-v0", vectorization="subprocess").build(seed=0)
    env.reset()
    assert play(env, np.zeros((2, 1), np.int64))[-1].terminated.all()
    env.close()


def run_script(tmp_path, text, **options):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, **options)


def test_a_script_without_a_main_guard_that_forgets_to_close_ends_by_itself(tmp_path):
    done = run_script(
        tmp_path,
        """
        import numpy as np
        from tests.envs.common import counting
        env = counting("subprocess").build(seed=0)
        env.reset()
        print(env.step(np.zeros(3, np.int64)).reward.tolist())
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.0, 1.0, 1.0]\n", "")


def test_an_environment_defined_in_the_script_works_under_a_main_guard(tmp_path):
    text = """
        from rlexp.envs import GymEnv
        from tests.counting import CountingEnv
        class Mine(CountingEnv):
            pass
        def main():
            config = GymEnv(id="mine", vectorization="subprocess")
            config.factory = Mine
            env = config.build(seed=0)
            print(env.reset().shape)
            env.close()
        """
    done = run_script(tmp_path, f'{text}\n        if __name__ == "__main__":\n            main()\n')
    assert (done.returncode, done.stdout) == (0, "(1, 3)\n")
    done = run_script(tmp_path, f"{text}\n        main()\n")
    assert done.returncode == 1
    assert "must start training under `if __name__ == '__main__':`" in done.stderr


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path):
    done = run_script(
        tmp_path,
        """
        import os, signal
        from tests.envs.common import counting
        env = counting("subprocess").build(seed=0)
        env.reset()
        print(*[worker.process.pid for worker in env._workers], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert done.returncode == -signal.SIGKILL
    numbers = [int(word) for word in done.stdout.split()]
    assert len(numbers) == 2
    assert gone(numbers)
