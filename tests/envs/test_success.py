"""Whether an episode succeeded is what its last step says, by either of the names in use."""

import numpy as np
import pytest

from rlexp.envs.seeded import _success


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({"is_success": True}, 1.0),
        ({"success": np.bool_(False)}, 0.0),
        ({"is_success": np.float32(1.0), "success": False}, 1.0),
        ({"success": np.array([True])}, 1.0),
        ({"is_success": None, "success": 1}, 1.0),
        ({"success": "yes"}, None),
        ({"success": np.array([True, False])}, None),
        ({}, None),
    ],
)
def test_success_is_read_where_it_is_said(info, success):
    assert _success(info) == success
