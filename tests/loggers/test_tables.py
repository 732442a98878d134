import io
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from rlexp.loggers import WandbMode, tables
from rlexp.loggers.format import share

CONF = Path(__file__).parents[2] / "conf"

RUNS = [
    {
        "name": "a-run-with-a-name-that-is-longer-than-many-a-terminal-is-wide-" + "x" * 60,
        "status": "completed",
        "algo": "ppo",
        "env": "CartPole-v1",
        "seed": 1,
        "env_steps": 50_000,
        "wall_time_s": 32,
        "eval": {"return_mean": 487.2, "return_std": 21.2},
        "best_eval": {"return_mean": 500.0, "return_std": 0.0},
    },
    {"name": "b", "status": "running", "algo": "sac", "env": "Pendulum-v1", "seed": 12},
]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_a_piped_table_is_aligned_and_whole():
    file = io.StringIO()
    tables.print_runs(RUNS, file=file)
    assert file.getvalue().splitlines() == [
        "run".ljust(122) + "  status     algo  env          seed   steps  time        eval       best",
        RUNS[0]["name"] + "  completed  ppo   CartPole-v1     1  50,000  0:32  487.2 ± 21  500.0 ± 0",
        "b".ljust(122) + "  running    sac   Pendulum-v1    12",
    ]


def test_what_has_begun_is_more_than_nothing_and_what_has_not_ended_is_less_than_all():
    shown = {0.0: "0%", 0.002: "<1%", 0.01: "1%", 0.294: "29%", 0.996: "99%", 1.0: "100%"}
    assert {value: share(value) for value in shown} == shown


def test_piped_choices_keep_one_line_each():
    file = io.StringIO()
    tables.print_choices("algo", {"ppo": "clipped " * 30, "discrete_sac": "entropy"}, file=file)
    assert file.getvalue().splitlines() == [
        "algo          what it is",
        "ppo           " + " ".join(["clipped"] * 30),
        "discrete_sac  entropy",
    ]


def test_in_a_terminal_columns_give_way_before_the_name_of_a_run(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "90")
    runs = [RUNS[0] | {"name": "ppo-cartpole-1-20260101-120000-abc"}, RUNS[1]]
    file = Terminal()
    tables.print_runs(runs, file=file)
    text = file.getvalue()
    assert "ppo-cartpole-1-20260101-120000-abc" in text
    assert "CartPole-v1" not in text
    assert "487.2 ± 21" in text


def test_an_evaluation_is_a_short_list():
    file = io.StringIO()
    result = {"return_mean": 2.0, "return_std": 1.0, "length_mean": 9.0, "episodes": 2, "returns": [1.0, 3.0]}
    tables.print_evaluation(result, title="ppo · CartPole-v1", paths={"video": "v.mp4"}, file=file)
    assert file.getvalue().splitlines() == [
        "ppo · CartPole-v1",
        "  return       2.00 ± 1.0",
        "  range        1.00 to 3.00",
        "  length       9.00",
        "  episodes     2",
        "  video        v.mp4",
    ]


def test_the_loggers_compose_side_by_side(tmp_path):
    (tmp_path / "main.yaml").write_text(
        f"defaults: [_self_, {{logger: []}}]\nhydra: {{searchpath: ['file://{CONF}']}}\n"
    )
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        config = compose("main", ["logger=[tensorboard,wandb]", "logger.wandb.mode=offline"])
        assert "logger" not in compose("main")
    assert set(config.logger) == {"tensorboard", "wandb"}
    assert config.logger.wandb.mode is WandbMode.offline
    assert OmegaConf.to_container(config.logger.tensorboard) == {
        "_target_": "rlexp.loggers.tensorboard.TensorBoardLogger",
        "hparams": True,
    }
