"""What is installed: every package, every config, and both found from any directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from rlexp.config.compose import CHOICE_GROUPS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]
YAML = sorted(path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml"))
BUILD_INPUTS = ("pyproject.toml", "README.md", "LICENSE", "rlexp", "conf")


def test_the_packages_listed_are_those_of_the_tree() -> None:
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "rlexp").rglob("__init__.py")}
    assert set(SETUPTOOLS["packages"]) == found | {"rlexp.conf"}
    assert SETUPTOOLS["packages"] == sorted(SETUPTOOLS["packages"])


def test_every_folder_with_modules_is_a_package() -> None:
    for path in (ROOT / "rlexp").rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), path.parent


def test_the_config_folder_is_mapped_into_the_package_and_all_of_it_is_data() -> None:
    assert SETUPTOOLS["package-dir"] == {"rlexp": "rlexp", "rlexp.conf": "conf"}
    assert (ROOT / "conf" / "__init__.py").exists()
    patterns = SETUPTOOLS["package-data"]["rlexp.conf"]
    matched = {path.relative_to(ROOT / "conf") for pattern in patterns for path in (ROOT / "conf").glob(pattern)}
    assert set(YAML) <= matched
    others = [
        path for path in (ROOT / "conf").rglob("*") if path.is_file() and path.suffix not in (".yaml", ".py", ".pyc")
    ]
    assert others == []  # nothing that would be left out of the wheel


def test_every_extra_an_error_message_names_is_one_of_the_projects() -> None:
    source = (ROOT / "rlexp" / "envs" / "locate.py").read_text()
    table = source[source.index("_EXTRAS = {") : source.index("}", source.index("_EXTRAS = {"))]
    assert set(re.findall(r': "(\w+)"', table)) <= set(PROJECT["project"]["optional-dependencies"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of what the build reads, so that nothing is written into the tree."""
    source = tmp_path_factory.mktemp("source")
    for name in BUILD_INPUTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    target = tmp_path_factory.mktemp("wheel")
    run("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(target), str(source))
    (built,) = target.glob("*.whl")
    return built


def run(*arguments: str, **keywords: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=180, **keywords)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done


def test_the_wheel_holds_every_config_and_module(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"rlexp/conf/{path}" for path in YAML} <= names
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "rlexp").rglob("*.py")} <= names
    assert {"rlexp/py.typed", "rlexp/conf/__init__.py"} <= names
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "rlexp" / "report" / "page").iterdir()} <= names
    assert not [name for name in names if name.startswith(("tests", "conf/", "docs"))]


ELSEWHERE = """
import sys
from pathlib import Path
import rlexp, rlexp.conf
from rlexp.cli import dispatch
from rlexp.config.compose import CHOICE_GROUPS, choices, compose
installed = Path(sys.argv[1]).resolve()
assert Path(rlexp.__file__).resolve().is_relative_to(installed), rlexp.__file__
assert Path(rlexp.conf.__file__).resolve() == installed / "rlexp" / "conf" / "__init__.py", rlexp.conf.__file__
for group in CHOICE_GROUPS:
    print(group, *choices(group))
assert dispatch(["list"]) == 0
config = compose(["algo=crr", "env=pendulum", "logger=[tensorboard]"])
assert config["algo"]["_target_"] == "rlexp.algos.crr.CRR" and config["dataset"]["size"] == 50_000
"""


def test_an_installed_wheel_composes_from_any_directory(wheel: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run("-m", "pip", "install", "--no-deps", "--quiet", "--target", str(installed), str(wheel))
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    environment.pop("RLEXP_CONFIG_DIR", None)
    done = run("-c", ELSEWHERE, str(installed), cwd=elsewhere, env=environment)
    listed = {line.split()[0]: set(line.split()[1:]) for line in done.stdout.splitlines()[: len(CHOICE_GROUPS)]}
    assert listed == {group: {path.stem for path in YAML if path.parent.name == group} for group in CHOICE_GROUPS}
    script = (installed / "bin" / "rlexp").read_text()
    assert "from rlexp.cli import main" in script
    assert list(elsewhere.iterdir()) == []
