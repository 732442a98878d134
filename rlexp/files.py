"""File primitives of checkpoints and run directories: durable writes, bounded reads, plain configs. Free of torch.

A write is either there in full or not there at all, also after a power cut. A read follows no link, waits for no
pipe and swallows no file larger than it should be, because the directory may come from a stranger.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from rlexp.errors import ConfigError, UntrustedError

MAX_JSON_BYTES = 64 * 2**20
MAX_CONFIG_BYTES = 2**20
MAX_CONFIG_DEPTH = 64
MAX_INTEGER_BITS = 1024


# -- writing


def write_synced(path: Path, data: bytes) -> None:
    """Create ``path`` with ``data`` and wait until it is on disk; an existing file or link is never written through."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until a file that somebody else wrote is on disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory (created, renamed, removed) are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: a reader, or a crash, sees the old content or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    write_synced(temporary, data)
    os.replace(temporary, path)
    sync_directory(path.parent)


def write_json_atomic(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON."""
    write_atomic(path, (json.dumps(value, indent=2) + "\n").encode())


def point_link(link: Path, target: str) -> None:
    """Let ``link`` point at ``target``, a name in the same directory, without a moment in which there is no link."""
    temporary = link.with_name(f".{link.name}.tmp")
    temporary.unlink(missing_ok=True)
    os.symlink(target, temporary)
    os.replace(temporary, link)
    sync_directory(link.parent)


# -- reading


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a link, pipe, device or directory is an OSError."""
    kind = os.lstat(path).st_mode
    if stat.S_ISLNK(kind):
        raise OSError("is a symbolic link, which is never followed here")
    if not stat.S_ISREG(kind):
        raise OSError("is not a regular file")
    # The flags close the gap between looking and opening: no link is followed and no pipe waited for.
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def read_bounded(path: Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes; OSError otherwise."""
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"is larger than the {limit} bytes such a file may have")
    return data


def parse_json(data: bytes) -> Any:
    """JSON from an untrusted file; ValueError for whatever is wrong with it. NaN and Infinity are read as floats."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:  # also bad UTF-8 and integers of thousands of digits
        raise ValueError(f"is not valid JSON ({error})") from None


def reason(error: Exception) -> str:
    """Why reading or writing failed, without the path that the caller names anyway."""
    return getattr(error, "strerror", None) or str(error)


# -- configs: plain YAML, no tags, no aliases, no interpolations


class _PlainLoader(yaml.SafeLoader):
    """SafeLoader without aliases: they let a small file stand for a huge tree, and rlexp never writes them."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


_last_dump = ("", b"")  # a config's repr and YAML: every checkpoint of a run holds the same, and YAML is slow


def config_bytes(config: dict[str, Any]) -> bytes:
    """A resolved config as YAML. It must be plain: an interpolation left in it could never be loaded again."""
    try:
        _check_plain(config)
    except ValueError as error:
        raise TypeError(f"The config of a run must be resolved and plain: {error}.") from None
    except UntrustedError as error:
        raise ConfigError(f"A config is saved resolved, and may not hold '${{': {error}") from None
    global _last_dump
    known, data = _last_dump
    said = repr(config)  # which says all there is to plain values
    if said != known:
        # Everything but ASCII is escaped: with allow_unicode PyYAML does not read back its own "\\x85".
        data = yaml.dump(config, Dumper=_PlainDumper, sort_keys=False, allow_unicode=False).encode()
        _last_dump = said, data
    return data


def parse_config(data: bytes) -> dict[str, Any]:
    """A config from an untrusted file. ValueError: not a plain config; UntrustedError: it holds an interpolation."""
    return copy.deepcopy(_parsed(data))


@functools.lru_cache(maxsize=2)  # a run and its checkpoint hold the same, and YAML is slow
def _parsed(data: bytes) -> dict[str, Any]:
    try:
        config = _load_yaml(data)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # the last two of `!!bool x`
        raise ValueError(f"is not plain YAML ({' '.join(str(error).split())})") from None
    if not isinstance(config, dict):
        raise ValueError("does not hold a mapping")
    _check_plain(config)
    return config


def _load_yaml(data: bytes) -> Any:
    """Plain YAML, by libyaml where it can be: that takes a fifth of the time."""
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may have been built without it
    # The other one says what is wrong, or reads what libyaml cannot: the name of a file that is no text.
    return yaml.load(data, Loader=fast if _is_harmless(data, fast) else _PlainLoader)  # noqa: S506  (SafeLoaders)


def _is_harmless(data: bytes, loader: Any) -> bool:
    """Whether it is YAML without aliases and great depth: libyaml cannot be told to refuse them, and recurses in C."""
    depth = 0
    try:
        for event in yaml.parse(data, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MAX_CONFIG_DEPTH:
                return False
    except yaml.YAMLError:
        return False
    return True


def _check_plain(value: Any, where: str = "", depth: int = 0) -> None:
    if depth > MAX_CONFIG_DEPTH:
        raise ValueError("is nested too deeply")
    if type(value) is dict:  # subclasses have their own meaning, which YAML would lose
        for key, child in value.items():
            place = f"{where}.{key}" if where else str(key)
            _check_plain(key, place)
            _check_plain(child, place, depth + 1)
    elif type(value) is list:
        for index, child in enumerate(value):
            _check_plain(child, f"{where}[{index}]", depth + 1)
    elif type(value) not in (str, int, float, bool, type(None)):
        raise ValueError(f"holds a {type(value).__name__} at '{where}', which is not a plain value")
    elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:  # str() of a much larger one is an error
        raise ValueError(f"holds an integer of {value.bit_length()} bits at '{where}'")
    elif isinstance(value, str) and "${" in value:
        raise UntrustedError(
            f"'{where}' holds the interpolation {value[:80]!r}. Interpolations can read the environment and run "
            "resolvers, so they are never resolved in a loaded config: put the value itself there."
        )
