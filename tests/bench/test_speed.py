import json

import pytest

from rlexp.bench import command, peers, report, speed, workloads
from rlexp.bench.contest import Rounds
from rlexp.bench.workloads import WORKLOADS, Workload, config_of, select
from rlexp.errors import ConfigError

WORK = Workload("work", "Some work", (), peer="sb3", least=2.0, aim=3.0)


def rounds(*rates, cpu=1.0):
    """Rounds of one second, in which the process had the processor for ``cpu`` seconds."""
    return Rounds(list(rates), [{"count": rate, "seconds": 1.0, "cpu_seconds": cpu} for rate in rates])


@pytest.fixture
def fake_sides(monkeypatch):
    """rlexp and the peers replaced by loops of known rate, in processes as always."""
    monkeypatch.setattr(speed, "RLEXP", "tests.bench.fake_peers:run_fast")
    for name, peer in list(peers.PEERS.items()):
        fake = peers.Peer(peer.title, {"json": "rlexp"}, "tests.bench.fake_peers:run_counting")
        monkeypatch.setitem(peers.PEERS, name, fake)


def test_the_ratio_is_the_median_of_the_rounds_not_the_ratio_of_medians():
    measured = {1: {"rlexp": rounds(10, 20, 90), "peer": rounds(5, 10, 9)}}
    result = speed.summarize(WORK, "SB3", measured)
    assert result["threads"]["1"]["ratios"] == [2.0, 2.0, 10.0]
    assert result["threads"]["1"]["ratio"] == 2.0  # the medians' ratio would be 20 / 9
    assert result["threads"]["1"]["rlexp"]["median"] == 20
    assert result["verdict"] == "enough"


def test_each_side_is_also_compared_at_its_better_number_of_threads():
    measured = {
        1: {"rlexp": rounds(40, 40), "peer": rounds(10, 10)},
        2: {"rlexp": rounds(30, 30), "peer": rounds(20, 16)},
    }
    result = speed.summarize(WORK, "SB3", measured)
    assert [result["threads"][count]["ratio"] for count in ("1", "2")] == [4.0, (1.5 + 1.875) / 2]
    best = result["best"]
    assert (best["rlexp"]["threads"], best["peer"]["threads"]) == (1, 2)
    assert best["ratio"] == (2.0 + 2.5) / 2
    assert result["verdict"] == "enough"  # judged at the better numbers, not at the flattering one


def test_without_a_peer_only_rates_are_reported():
    result = speed.summarize(WORK, None, {1: {"rlexp": rounds(7, 9)}})
    assert result["best"] == {"rlexp": {"threads": 1, "median": 8}}
    assert "ratio" not in result["threads"]["1"]
    assert result["verdict"] == ""


def test_the_ratio_by_processor_time_leaves_out_what_others_took():
    measured = {1: {"rlexp": rounds(10, 10, cpu=0.5), "peer": rounds(5, 5)}}
    one = speed.summarize(WORK, "SB3", measured)["threads"]["1"]
    assert (one["ratio"], one["cpu_ratio"]) == (2.0, 4.0)


@pytest.mark.parametrize(("ratio", "expected"), [(1.9, "missed"), (2.0, "enough"), (3.0, "aim reached"), (None, "")])
def test_a_verdict_compares_with_what_is_wanted(ratio, expected):
    assert report.verdict(ratio, 2.0, 3.0) == expected


def test_speed_runs_every_side_in_a_process_and_writes_what_it_depended_on(fake_sides, tmp_path, capsys):
    path = tmp_path / "out" / "speed.json"
    arguments = ["speed", "--against", "sb3", "--only", "ppo_cartpole", "--rounds", "2", "--seconds", "0.05"]
    assert command.main([*arguments, "--threads", "1", "-o", str(path)]) == 0
    written = json.loads(path.read_text(encoding="utf-8"))
    assert set(written) == {"format", "command", "created", "machine", "versions", "git", "options", "results"}
    assert set(written["machine"]) == {"platform", "cpu", "cores", "load"}
    assert written["versions"]["torch"]
    assert written["options"] == {
        "against": ["sb3"],
        "only": ["ppo_cartpole"],
        "rounds": 2,
        "seconds": 0.05,
        "threads": [1],
    }
    (result,) = written["results"]
    assert result["name"] == "ppo_cartpole"
    assert result["settings"]["peer"]["class"] == "PPO"
    assert result["settings"]["rlexp"]["algo"]["epochs"] == 10
    one = result["threads"]["1"]
    assert len(one["rlexp"]["rounds"]) == len(one["peer"]["rounds"]) == len(one["ratios"]) == 2
    table = capsys.readouterr().out
    assert "ppo_cartpole" in table
    assert "SB3" in table


def test_a_workload_that_fails_does_not_take_the_others_down(fake_sides, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(peers.PEERS, "sb3", peers.Peer("SB3", {"json": "rlexp"}, "tests.bench.fake_peers:run_broken"))
    path = tmp_path / "speed.json"
    arguments = ["speed", "--against", "sb3", "--only", "ppo_cartpole,discrete_sac_cartpole", "--rounds", "1"]
    assert command.main([*arguments, "--seconds", "0.02", "--threads", "1", "-o", str(path)]) == 1
    failed, good = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert "it broke" in failed["error"]
    assert good["peer"] == "rlexp eager"
    assert "failed" in capsys.readouterr().out


def test_a_missing_peer_is_named_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'stable-baselines3 and sb3-contrib.*pip install "rlexp\[bench\]"'):
        speed.run(against=["sb3"], only=["ppo_cartpole"], rounds=1, seconds=1.0, threads=[1])
    with pytest.raises(ConfigError, match=r"--no-deps"):
        peers.require(["d3rlpy"])
    with pytest.raises(ConfigError, match="Did you mean sb3"):
        peers.require(["sb"])


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="Did you mean ppo_cartpole"):
        select(["ppo_cartpol"])
    with pytest.raises(ConfigError, match="invalid choice"):
        command.main(["sped"])
    with pytest.raises(ConfigError, match="at least 1"):
        command.main(["speed", "--rounds", "0"])


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_every_workload_composes_into_an_endless_compiled_run_and_can_be_translated(work):
    config = config_of(work, "data.npz")
    budget = config["trainer"].get("total_updates") or config["trainer"]["total_steps"]
    assert budget == workloads.FOREVER
    assert config["compile"] is True
    assert config["trainer"]["eval_episodes"] == 0
    if work.peer in peers.PEERS:
        peers.translate(work.peer, config)
    entry = speed.entry_of_peer(work, config, list(peers.PEERS))
    assert entry is not None
    assert speed.entry_of_peer(work, config, []) is None or work.peer == workloads.EAGER
