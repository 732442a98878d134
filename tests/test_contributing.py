"""The algorithm in CONTRIBUTING.md is clean by the project's own rules, and trains."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from rlexp.config.component import REGISTRY
from rlexp.config.compose import compose
from rlexp.errors import ConfigError
from rlexp.runner import Runner

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
(CODE,) = re.findall(r"^```python\n# rlexp/algos/optimistic_sac\.py\n(.*?)^```", PAGE, re.M | re.S)
YAML, OUTSIDE = re.findall(r"^```yaml\n(.*?optimistic_sac.*?)^```", PAGE, re.M | re.S)


@pytest.mark.parametrize("rules", [["check"], ["format", "--check"]], ids=["check", "format"])
def test_the_example_lints_clean(rules: list[str]) -> None:
    command = [sys.executable, "-m", "ruff", *rules, "--stdin-filename", "rlexp/algos/optimistic_sac.py", "-"]
    done = subprocess.run(command, input=CODE, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The two files, without touching the checkout."""
    (tmp_path / "optimistic_sac.py").write_text(CODE)
    (tmp_path / "conf" / "algo").mkdir(parents=True)
    (tmp_path / "conf" / "algo" / "optimistic_sac.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("RLEXP_CONFIG_DIR", str(tmp_path / "conf"))
    monkeypatch.setenv("RLEXP_PLUGINS", "optimistic_sac")
    yield tmp_path
    sys.modules.pop("optimistic_sac", None)
    REGISTRY["algo"].pop("optimistic_sac", None)
    ConfigStore.instance().repo["schema"]["algo"].pop("optimistic_sac.yaml", None)


def test_the_example_trains_and_refuses_a_typo(added: Path) -> None:
    small = ["threads=1", "compile=false", "progress=none", "model.hidden=[8]", "trainer.total_steps=64"]
    small += ["trainer.learning_starts=16", "trainer.batch_size=8", "trainer.eval_episodes=0", "buffer.capacity=100"]
    chosen = ["algo=optimistic_sac", "env=pendulum"]
    summary = Runner(compose([*chosen, "algo.bonus=0.2", *small])).train(added / "run")
    assert (summary["status"], summary["algo"], summary["updates"]) == ("completed", "optimistic_sac", 48)
    with pytest.raises(ConfigError, match=r"Did you mean bonus\?"):
        compose([*chosen, "algo.bonuss=0.2"])
