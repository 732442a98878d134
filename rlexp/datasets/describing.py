"""What is learned from, in a line for people and in numbers for the summary. Free of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rlexp.datasets.transitions import Transitions


def figures(data: Transitions) -> dict[str, Any]:
    """Source, size, and the returns of whole episodes, as written to summary.json."""
    returns, whole = data.episodes()
    found: dict[str, Any] = {"source": data.source, "transitions": len(data), "episodes": int(whole.sum())}
    if whole.any():
        found |= {"return_mean": float(np.mean(returns[whole])), "return_std": float(np.std(returns[whole]))}
    return found | {"cut_episodes": int((~whole).sum()), "dropped_rows": data.dropped}


def describe(data: Transitions) -> str:
    """``1,000 transitions, 5 episodes, return -432.1 ± 12; 1 cut episode left out of episodes and return``."""
    found = figures(data)
    text = f"{counted(found['transitions'], 'transition')}, {counted(found['episodes'], 'episode')}"
    if found["episodes"]:
        text += f", return {found['return_mean']:.6g} ± {found['return_std']:.6g}"
    if cut := found["cut_episodes"]:
        text += f"; {counted(cut, 'cut episode')} left out of episodes and return"
    if dropped := found["dropped_rows"]:
        text += f"; {counted(dropped, 'row')} left out, because what was observed after a time limit is not recorded"
    return text


def counted(count: int, thing: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
