"""Worker processes import rlexp.envs: it must not bring torch along."""

import subprocess
import sys


def test_importing_the_environments_does_not_import_torch():
    code = "import sys, rlexp.envs; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
