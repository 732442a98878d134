"""Several datasets as one, each with its share of every batch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from rlexp.config.component import REGISTRY, accepts_any_keyword, component, schema_of, target_of
from rlexp.config.messages import suggest
from rlexp.datasets.settings import DatasetSettings, ObsScaling, Reward
from rlexp.datasets.spaces import widened
from rlexp.datasets.transitions import Transitions, joined
from rlexp.errors import ConfigError

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv
    from rlexp.envs.spec import EnvSpec


@component("dataset", "combined")
@dataclass(eq=False, kw_only=True)
class CombinedDataset(DatasetSettings):
    """Datasets put together: ``sources=[{kind: npz, path: a.npz, weight: 3}, {kind: random, size: 1000, weight: 1}]``.

    A sampled transition comes from a source with the probability of its weight among all weights, and is any row of
    that source with equal probability. Without weights every row of all sources is equally likely. Reward and
    observation presets are those of the whole; what repairs a source stands with the source.
    """

    sources: list[Any] = field(default_factory=list)  # {kind: a choice of dataset=, weight: number, its settings…}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights: list[float] = []
        self.parts = [self._part(f"dataset.sources[{i}]", node) for i, node in enumerate(self.sources)]
        if len(self.sources) < 2:
            raise ConfigError("dataset=combined: give two or more dataset.sources=[{kind: npz, path: …}, …].")
        if self.weights and len(self.weights) < len(self.parts):
            raise ConfigError("dataset.sources: give a weight to each source, or to none (then rows count equally).")

    @property
    def weighted(self) -> bool:
        """Whether sources are sampled by weights, not by their sizes."""
        return bool(self.weights)

    def _part(self, where: str, node: Any) -> Any:
        from rlexp.config.check import build

        if not isinstance(node, dict) or not isinstance(node.get("kind"), str):
            raise ConfigError(f"{where} must name its kind: {{kind: npz, path: data.npz}}.")
        settings = {key: value for key, value in node.items() if key not in ("kind", "weight")}
        kinds = {name: cls for name, cls in REGISTRY["dataset"].items() if cls is not type(self)}
        if node["kind"] not in kinds or "_target_" in settings:
            raise ConfigError(f"{where}.kind={node['kind']}: no such dataset.{suggest(node['kind'], kinds)}")
        names = [name for name in (f.name for f in fields(schema_of(kinds[node["kind"]]))) if not name.startswith("_")]
        for key in settings:
            if key not in names and not accepts_any_keyword(kinds[node["kind"]]):
                suggestion = suggest(str(key), ["kind", "weight", *names])
                raise ConfigError(f"{where}.{key}: {kinds[node['kind']].__name__} has no such setting.{suggestion}")
        if (weight := node.get("weight")) is not None:
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
                raise ConfigError(f"{where}.weight must be a number greater than 0, not {weight!r}.")
            self.weights.append(float(weight))
        part = build(where, {"_target_": target_of(kinds[node["kind"]]), **settings})
        if getattr(part, "reward", Reward.none) is not Reward.none or getattr(part, "obs", None) not in (
            None,
            ObsScaling.none,
        ):
            raise ConfigError(
                f"{where}: set reward and obs for all sources together, as dataset.reward and dataset.obs."
            )
        return part

    def load(self, env: GymEnv) -> Transitions:
        """All sources one after another, each checked by itself."""
        loaded = []
        for part in self.parts:
            if hasattr(part, "report"):
                part.report = self.report
            loaded.append(part.load(env))
        sizes = [len(data) for data in loaded]
        data = self.prepared(joined(loaded), env.spec(), "the combined dataset")
        weights: list[float] | list[None] = self.weights or [None] * len(sizes)
        return replace(data, sources=tuple(zip(sizes, weights)))

    def spaces(self, limit: float | None = None) -> EnvSpec:
        """Wide enough for all sources."""
        for part in self.parts:
            if not hasattr(part, "spaces"):
                raise ConfigError(f"env=from_dataset: {type(part).__name__} cannot say its spaces.")
        return widened([part.spaces(limit) for part in self.parts])
