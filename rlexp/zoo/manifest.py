"""Manifests: what presets reached, one JSON file for each, with everything that a result depends on. Free of torch,
but for measuring what random play and the data reach.

    preset, algo, env, figure, unit      what was measured, and by what
    random, data                         what uniform actions reach; the mean return of what was learned from
    runs                                 one for each seed: command, config hash, commit, versions, machine, wall time,
                                         what was spent, the last and the best evaluation, and the curve

What is not known of a run is null.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlexp import files
from rlexp.config.component import snake_case
from rlexp.errors import DataError, RlexpError, RunError
from rlexp.loggers.format import short_path
from rlexp.run_dir import RunDir
from rlexp.zoo.targets import TARGETS

FORMAT = 1
FOLDER = "manifests"
RANDOM_EPISODES = 20
# Of the occasion: neither part of what is measured, nor of its hash.
OCCASION = ("name", "seed", "device", "compile", "threads", "progress", "logger")
_PATHS = ("name=", "progress=", "hydra.", "logger")  # words of a command that say nothing on what was run
_NUMBERS = re.compile(r"\[\s+(-?[\d.e+-]+(?:,\s+-?[\d.e+-]+)*)\s+\]")

Manifest = dict[str, Any]
Run = dict[str, Any]


def load(folder: Path) -> list[Manifest]:
    """All manifests of a folder, those with a target in the order of the targets, then the others by name."""
    found = [read(path) for path in sorted((folder / FOLDER).glob("*.json"))]
    order = {name: place for place, name in enumerate(TARGETS)}
    return sorted(found, key=lambda each: (order.get(each["preset"], len(order)), each["preset"]))


def read(path: Path) -> Manifest:
    """One manifest."""
    try:
        manifest = files.parse_json(files.read_bounded(path, files.MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} {files.reason(error)}. `rlexp bench zoo` writes it anew.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("preset") != path.stem:
        raise DataError(f"{path} is no manifest of format {FORMAT} for the preset {path.stem}.")
    return manifest


def write(folder: Path, manifest: Manifest) -> Path:
    """Keep a manifest; the points of a curve take one line each."""
    path = folder / FOLDER / f"{manifest['preset']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    text = _NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", text)
    files.write_atomic(path, f"{text}\n".encode())
    return path


def config_hash(config: Mapping[str, Any]) -> str:
    """Of a resolved config without what belongs to the occasion: two runs that differ in nothing else share it."""
    kept = {key: value for key, value in config.items() if key not in OCCASION}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


# ---- from runs to manifests


def collect(
    folder: Path,
    runs: Iterable[Path],
    config_folders: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> list[Manifest]:
    """Add completed runs to the manifests in ``folder``; a run takes the place of one with the same preset and seed."""
    changed: dict[str, Manifest] = {}
    for place in runs:
        about, run = read_run(place, config_folders)
        name = about["preset"]
        if name not in changed:
            path = folder / FOLDER / f"{name}.json"
            changed[name] = {**(read(path) if path.exists() else about), "algo": about["algo"], "env": about["env"]}
        manifest = changed[name]
        others = [each for each in manifest["runs"] if each["seed"] != run["seed"]]
        manifest["runs"] = sorted([*others, run], key=lambda each: each["seed"])
    baselines = _Baselines(config_folders, say)
    for manifest in changed.values():
        baselines.add(manifest)
        write(folder, manifest)
    return list(changed.values())


def read_run(path: Path, config_folders: Sequence[str] = ()) -> tuple[Manifest, Run]:
    """A manifest without runs, and what it will keep of the run in ``path``; RunError if that is not completed."""
    run_dir = RunDir.open(path)
    state, info, config, summary = run_dir.state(), run_dir.info, run_dir.config, run_dir.summary()
    if state != "completed":
        raise RunError(f"{short_path(path)} is {state}, not completed.")
    preset = next((word[4:] for word in info["command"] if re.fullmatch(r"zoo=[\w-]+", word)), None)
    if preset is None:
        raise RunError(f"{short_path(path)} is no run of a preset: its command has no zoo=NAME.")
    figure = TARGETS[preset].figure if preset in TARGETS else "return_mean"
    unit = "steps" if config["trainer"].get("total_steps") else "updates"
    clock = "updates" if unit == "updates" else "env_steps"
    algo = snake_case(str(config["algo"]["_target_"]).rpartition(".")[2])
    git, decisions = info["git"].get("rlexp") or {}, info["decisions"]
    resumed = changes([word for each in info["resumes"] for word in each.get("command", [])[3:]])
    begun = changes(info["command"][1:])
    if begun and not resumed and is_preset(preset, config, config_folders):
        begun = []  # what had to be typed has become the preset
    about = {"format": FORMAT, "preset": preset, "algo": algo, "env": summary["env"], "figure": figure, "unit": unit,
             "random": None, "data": None, "runs": []}  # fmt: skip
    run = {
        "seed": summary["seed"],
        "command": typed(info),
        "changes": [*begun, *resumed],
        "config_sha256": config_hash(config),
        "created": info["created"],
        "commit": git.get("commit"),
        "dirty": git.get("dirty"),
        "versions": info["versions"],
        "machine": {"cpu": None, "cores": None, **(info.get("machine") or {}), "platform": info.get("platform")},
        "device": decisions.get("device"),
        "threads": decisions.get("threads"),
        "compiled": decisions.get("compile"),
        "wall_time_s": summary["wall_time_s"],
        "spent": summary["updates" if unit == "updates" else "env_steps"],
        "eval": summary["eval"],
        "best_eval": summary["best_eval"],
        "curve": [
            [row[clock], round(row[f"eval/{figure}"], 3), round(row["time_s"], 1)]
            for row in run_dir.metrics()
            if f"eval/{figure}" in row
        ],
    }
    if not run["curve"] or figure not in (run["eval"] or {}):
        raise RunError(f"{short_path(path)} was not evaluated by its {figure}, so there is nothing to keep.")
    return about, run


def is_preset(name: str, config: Mapping[str, Any], config_folders: Sequence[str] = ()) -> bool:
    """Whether a run's settings are just those of the preset as it is now."""
    from rlexp.config.compose import compose

    try:
        return config_hash(compose([f"zoo={name}"], config_folders)) == config_hash(config)
    except RlexpError:  # there is no such preset any more
        return False


def typed(info: Mapping[str, Any]) -> str:
    """The command of a run, and those that changed it on the way: to extend is not to begin with that budget."""
    command = " ".join(word for word in info["command"] if not word.startswith(_PATHS))
    later = [changes(each.get("command", [])[3:]) for each in info["resumes"]]
    return "".join([command, *(f"; rlexp resume RUN {' '.join(words)}" for words in later if words)])


def changes(words: Sequence[str]) -> list[str]:
    """Of what was typed the settings that make it another experiment than the preset."""
    own = ("zoo", "checkpoint", "trust", "launcher", *OCCASION)
    settings = [word for word in words if "=" in word and not word.startswith("-")]
    return [word for word in settings if word.lstrip("+~").partition("=")[0].partition(".")[0] not in (*own, "hydra")]


class _Baselines:
    """Measures what uniform actions reach, and what the data of offline presets hold."""

    def __init__(self, config_folders: Sequence[str], say: Callable[[str], None]) -> None:
        self._folders, self._say = config_folders, say
        self._played: dict[str, dict[str, float]] = {}  # by environment: many presets share one

    def add(self, manifest: Manifest) -> None:
        """Fill in what is missing."""
        if manifest["random"] is not None and (manifest["unit"] == "steps" or manifest["data"] is not None):
            return
        from rlexp.config.compose import compose
        from rlexp.runner import Runner

        try:
            changed = manifest["runs"][0]["changes"]
            runner = Runner(compose([f"zoo={manifest['preset']}", *changed], self._folders))
            key = json.dumps(runner.config["env"], sort_keys=True, default=str)
            if key not in self._played:
                self._played[key] = random_play(runner.env)
            figures = self._played[key]
            manifest["random"] = {name: figures[name] for name in (manifest["figure"], "episodes")}
            if manifest["data"] is None and runner.trainer.loop == "offline" and runner.dataset is not None:
                returns = runner.dataset.load(runner.env).episode_returns()
                manifest["data"] = {"return_mean": round(float(returns.mean()), 3), "episodes": len(returns)}
        except (RlexpError, KeyError) as error:  # a package that is missing here, an environment that is gone
            self._say(f"{manifest['preset']}: random play and data were not measured: {error}")


def random_play(env: Any, episodes: int = RANDOM_EPISODES, seed: int = 0) -> dict[str, float]:
    """What uniform actions reach in an environment, as an evaluation says it."""
    from rlexp.evaluation import Evaluation
    from rlexp.recording import RandomActor

    envs = env.for_evaluation().build(seed, num_envs=1)
    actor = RandomActor(env.spec(), seed)
    played: list[Any] = []
    try:
        obs = envs.reset(seed)
        while len(played) < episodes:
            step = envs.step(actor(obs))
            played += step.episodes
            obs = step.obs
    finally:
        envs.close()
    successes = [each.info["is_success"] for each in played if "is_success" in each.info]
    figures = Evaluation([each.ret for each in played], [each.length for each in played], successes).summary()
    return {name: round(value, 3) for name, value in figures.items()}
