"""Algorithms outside of the stability promise: on the same contracts and held to the same tests, but younger."""

from rlexp.contrib.recurrent_ppo import RecurrentPPO

__all__ = ["RecurrentPPO"]
