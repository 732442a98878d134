"""What a page says of where a result came from, and what it does not say of runs that were changed."""

from typing import Any

from rlexp.config.compose import compose
from rlexp.zoo.manifest import is_preset, typed
from rlexp.zoo.page import origins, times
from rlexp.zoo.results import Result

RUN = {"seed": 0, "commit": "c" * 40, "dirty": False, "config_sha256": "d" * 64, "versions": {}, "device": "cpu",
       "threads": 1, "machine": {"cpu": None, "cores": None, "platform": "here"}}  # fmt: skip


def info(*resumes: list[str]) -> dict[str, Any]:
    command = ["rlexp", "zoo=ppo_pong", "seed=0", "threads=1", "name=mine"]
    return {"command": command, "resumes": [{"command": words} for words in resumes]}


def test_what_was_changed_on_the_way_is_told_apart_from_the_beginning() -> None:
    plain = info(["rlexp", "resume", "mine"], ["rlexp", "resume", "mine", "progress=none"])
    assert typed(plain) == "rlexp zoo=ppo_pong seed=0 threads=1"
    extended = typed(info(["rlexp", "resume", "mine", "trainer.total_steps=3_000_000"]))
    assert extended == "rlexp zoo=ppo_pong seed=0 threads=1; rlexp resume RUN trainer.total_steps=3_000_000"
    run = RUN | {"command": extended, "changes": ["trainer.total_steps=3_000_000"]}
    page = "\n".join(origins([Result({"preset": "ppo_pong", "runs": [run]})]))
    assert "`rlexp zoo=ppo_pong seed=S threads=1; rlexp resume RUN trainer.total_steps=3_000_000`" in page


def test_the_page_shows_what_was_typed_at_that_commit_even_if_it_became_the_preset() -> None:
    run = RUN | {"command": "rlexp zoo=ppo_pong seed=0 algo.clip_range=0.2 threads=1", "changes": []}
    page = "\n".join(origins([Result({"preset": "ppo_pong", "runs": [run]})]))
    assert "`rlexp zoo=ppo_pong seed=S threads=1 algo.clip_range=0.2`" in page


def test_settings_that_were_typed_and_became_the_preset_are_told_from_others() -> None:
    same = compose(["zoo=ppo_pong", "env.num_envs=16", "algo.clip_range=0.2", "seed=4", "name=mine", "threads=1"])
    assert is_preset("ppo_pong", same)
    assert not is_preset("ppo_pong", compose(["zoo=ppo_pong", "algo.clip_range=0.1"]))
    assert not is_preset("no_such_preset", same)


def test_a_preset_that_was_called_otherwise_at_that_commit_is_shown_by_its_name_of_then() -> None:
    run = RUN | {"command": "rlexp zoo=ppo_breakout_small seed=0 threads=1", "changes": []}
    page = "\n".join(origins([Result({"preset": "ppo_breakout", "runs": [run]})]))
    assert "`rlexp zoo=ppo_breakout_small seed=S threads=1`" in page


def test_runs_of_another_budget_are_not_timed_on_their_way_to_the_target() -> None:
    run = {"curve": [[1_000, 500.0, 2.0]], "changes": []}
    changed = run | {"changes": ["trainer.total_steps=2_000"]}
    results = [Result({"preset": "ppo_cartpole", "unit": "steps", "runs": [each]}) for each in (run, changed)]
    assert times(results[1:]) == []
    assert [line for line in times(results) if "ppo_cartpole" in line] == [
        "| `ppo_cartpole` | 1 of 1 | 1,000 steps | 0:02 |"
    ]
