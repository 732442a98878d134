"""A model of the actions in a dataset: a variational autoencoder given the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from rlexp.envs.spec import EnvSpec
    from rlexp.models import Model
    from rlexp.models.network import NetDefaults
    from rlexp.types import Obs

LOG_STD_MIN, LOG_STD_MAX = -4.0, 15.0  # of the latent, as in BCQ's code


class ActionVAE(nn.Module):
    """Encoder q(z|s, a) and decoder of actions in (−1, 1); latents have twice as many dimensions as actions."""

    def __init__(self, model: Model, spec: EnvSpec, defaults: NetDefaults) -> None:
        super().__init__()
        dim = spec.action.dim
        self.latent = 2 * dim
        self.encoder = model.build(spec, 2 * self.latent, defaults=defaults, action_dim=dim)
        self.decoder = model.build(spec, dim, defaults=defaults, action_dim=self.latent)

    def encode(self, obs: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log_std of the latent, [B, L] each."""
        mean, log_std = self.encoder(obs, action).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def decode(self, obs: Obs, latent: Tensor) -> Tensor:
        """Actions before their tanh, [B, A]."""
        return self.decoder(obs, latent)  # type: ignore[no-any-return]

    def forward(self, obs: Obs, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstructed actions [B, A], and mean and log_std of the latent that ``noise`` [B, L] is scaled by."""
        mean, log_std = self.encode(obs, action)
        return self.decode(obs, mean + log_std.exp() * noise).tanh(), mean, log_std
