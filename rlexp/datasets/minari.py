"""Minari's datasets, read and written with its own library: episodes with T + 1 observations, found by their id.

They lie below ``$MINARI_DATASETS_PATH`` or ``~/.minari/datasets``. Reading makes no environment of what a dataset says
about itself, and follows no link out of its file.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlexp.config.component import component
from rlexp.datasets.files import check_hdf5_links, check_memory, reading
from rlexp.datasets.settings import FileSettings
from rlexp.datasets.spaces import limited
from rlexp.datasets.transitions import Transitions
from rlexp.envs.spaces import ActionCodec, ObsCodec, action_spec
from rlexp.envs.spec import EnvSpec
from rlexp.errors import DataError, EnvError
from rlexp.tree import tree_leaves, tree_map

if TYPE_CHECKING:
    from rlexp.envs.gym_env import GymEnv

INSTALL = "Minari is not installed: pip install 'rlexp[minari]'."
_SHOWN = 10  # ids that a message lists


@component("dataset", "minari")
@dataclass(eq=False, kw_only=True)
class MinariDataset(FileSettings):
    """A local dataset of Minari, by its id."""

    id: str  # as `minari list local` shows it, e.g. D4RL/door/human-v2

    def load(self, env: GymEnv) -> Transitions:
        """Read all episodes and check them against the environment."""
        return self.prepared(read_minari(self.id), env.spec(), f"the Minari dataset {self.id}")

    def spaces(self, limit: float | None = None) -> EnvSpec:
        """As the dataset declares them."""
        dataset = open_minari(self.id)
        codec, actions = _codecs(dataset.observation_space, dataset.action_space, f"the Minari dataset {self.id}")
        return limited(EnvSpec(self.id, codec.spec, actions.spec), limit)


def dataset_folder(dataset_id: str) -> Path:
    """Where a dataset lies, or would lie."""
    with _library() as minari:
        try:
            minari.dataset.minari_dataset.parse_dataset_id(dataset_id)
        except (ValueError, TypeError):  # TypeError: its pattern lets an id without a version pass, and then counts it
            raise DataError(
                f"{dataset_id!r} is no id of a Minari dataset, which ends with a version: pendulum/random-v0."
                f"{there_are()} A file is told by its ending (.hdf5 or .npz), a folder by a slash."
            ) from None
        return Path(minari.storage.get_dataset_path(dataset_id))


def there_are() -> str:
    """A sentence that names some of the local datasets; empty where there are none."""
    with _library() as minari:
        root = Path(minari.storage.get_dataset_path(""))
    found = (path.parents[1].relative_to(root) for path in root.glob("**/data/metadata.json"))
    ids = sorted(str(path) for path in found)
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return f" There are {', '.join(ids[:_SHOWN])}{more} here." if ids else ""


def is_minari(dataset_id: str) -> bool:
    """Whether there is a local dataset of this id."""
    try:
        return (dataset_folder(dataset_id) / "data" / "metadata.json").is_file()
    except DataError:
        return False


def open_minari(dataset_id: str) -> Any:
    """The library's own object for a local dataset."""
    folder = dataset_folder(dataset_id)
    if not (folder / "data").is_dir():
        raise DataError(
            f"There is no Minari dataset {dataset_id} in {folder}.{there_are()} "
            f"Get it with: minari download {dataset_id}"
        )
    file = folder / "data" / "main_data.hdf5"
    with reading(folder, "Minari dataset"), _library() as minari:
        _check_metadata(folder / "data" / "metadata.json")
        if file.exists():
            check_hdf5_links(file)
        return minari.load_dataset(dataset_id)


def _check_metadata(path: Path) -> None:
    """Refuse a dataset that does not declare its spaces: the library would make the environment it names to ask it."""
    if not path.is_file():
        raise DataError(f"{path} is missing. Download or save the dataset again.")
    metadata = json.loads(path.read_text())
    for key in ("observation_space", "action_space"):
        if not isinstance(metadata.get(key), str):
            raise DataError(
                f"{path} declares no {key}. To find out, Minari would run the code that the dataset names as its "
                "environment, so it is refused. Download a newer version of the dataset, or save it again with spaces."
            )


def minari_episodes(dataset: Any) -> Iterator[Transitions]:
    """The episodes one by one, in canonical form."""
    codec, actions = _codecs(dataset.observation_space, dataset.action_space, dataset.spec.dataset_id)
    for episode in dataset.iterate_episodes():
        observations = codec.encode_many(episode.observations)
        steps = len(episode.rewards)
        for name, leaf in tree_leaves(observations):
            if len(leaf) != steps + 1:
                raise DataError(
                    f"The Minari dataset {dataset.spec.dataset_id}: episode {episode.id} has {steps} rewards but "
                    f"{len(leaf)} observations {name}. It must have one more than rewards."
                )
        terminated = np.asarray(episode.terminations, bool)
        truncated = np.asarray(episode.truncations, bool) & ~terminated
        cut = np.zeros(steps, bool)
        cut[-1:] = ~(terminated | truncated)[-1:]  # its record ends there, without an end of the episode
        yield Transitions(
            obs=tree_map(lambda leaf: leaf[:-1], observations),
            action=actions.encode_many(episode.actions),
            reward=np.asarray(episode.rewards),
            next_obs=tree_map(lambda leaf: leaf[1:], observations),
            terminated=terminated,
            truncated=truncated | cut,
            gaps=cut,
        )


def read_minari(dataset_id: str) -> Transitions:
    """All transitions of a dataset, each episode read once into its place."""
    source = f"the Minari dataset {dataset_id}"
    dataset = open_minari(dataset_id)
    with reading(dataset_folder(dataset_id), "Minari dataset"):
        return _gathered(minari_episodes(dataset), int(dataset.total_steps), source)


def _gathered(episodes: Iterator[Transitions], total: int, source: str) -> Transitions:
    """Episodes put into arrays of ``total`` rows."""
    columns: dict[str, np.ndarray] = {}
    at = 0
    gaps = np.zeros(total, bool)
    for episode in episodes:
        arrays = episode.to_d4rl()
        if not columns:
            check_memory(total * sum(array[:1].nbytes for array in arrays.values()), Path(source))
            columns = {key: np.empty((total, *array.shape[1:]), array.dtype) for key, array in arrays.items()}
        if at + len(episode) > total:
            raise DataError(f"{source} holds more than the {total} steps it declares. Save it again.")
        for key, array in arrays.items():
            columns[key][at : at + len(episode)] = array
        if episode.gaps is not None:
            gaps[at : at + len(episode)] = episode.gaps
        at += len(episode)
    if not at:
        raise DataError(f"{source} holds no transitions.")
    data = Transitions.from_d4rl({key: column[:at] for key, column in columns.items()}, source)
    return replace(data, gaps=gaps[:at])


def save_minari(dataset_id: str, data: Transitions, env: GymEnv, algorithm: str | None = None) -> Path:
    """Write a dataset under a new id, in the environment's own spaces; it appears complete or not at all."""
    folder = dataset_folder(dataset_id)
    if folder.exists():
        raise DataError(f"There is a Minari dataset {dataset_id} already. Choose another id, or delete {folder}.")
    made = env.make()
    try:
        with _library() as minari, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on what it would like to be told of evaluation and authors
            try:
                minari.create_dataset_from_buffers(
                    dataset_id,
                    list(_episode_buffers(minari, data, made)),
                    env=made if getattr(made, "spec", None) is not None else None,
                    observation_space=made.observation_space,
                    action_space=made.action_space,
                    algorithm_name=algorithm,
                    jpeg_encoding=False,  # JPEG would change the images
                )
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    finally:
        made.close()
    return folder


def _episode_buffers(minari: Any, data: Transitions, env: Any) -> Iterator[Any]:
    codec, actions = _codecs(env.observation_space, env.action_space, "the environment")
    first, gaps = 0, np.zeros(len(data), bool) if data.gaps is None else data.gaps
    for last in np.flatnonzero(data.ends()).tolist():
        rows = slice(first, last + 1)
        observations = tree_map(
            lambda leaf, after, rows=rows, last=last: np.concatenate([leaf[rows], after[last : last + 1]]),
            data.obs,
            data.next_obs,
        )
        yield minari.data_collector.EpisodeBuffer(
            observations=codec.decode_many(observations),
            actions=_stacked(actions.decode(data.action[rows])[1]),
            rewards=data.reward[rows],
            terminations=data.terminated[rows],
            truncations=data.truncated[rows] & ~gaps[rows],  # a cut episode has no end
        )
        first = last + 1


def _stacked(actions: Any) -> np.ndarray:
    return actions if isinstance(actions, np.ndarray) else np.stack(list(actions))


def _codecs(observations: Any, actions: Any, source: str) -> tuple[ObsCodec, ActionCodec]:
    try:
        return ObsCodec(observations), ActionCodec(actions, action_spec(actions))
    except EnvError as error:
        raise DataError(f"{source}: {error}") from error


@contextlib.contextmanager
def _library() -> Iterator[Any]:
    try:
        import minari
        import minari.data_collector
        import minari.dataset.minari_dataset
        import minari.storage
    except ImportError as error:
        raise DataError(INSTALL) from error
    yield minari
