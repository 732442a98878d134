"""``python -m rlexp``."""

import os
import sys

if __name__ == "__main__":
    if sys.path[0] == os.getcwd():  # Python puts it first; it may be a stranger's run with a torch.py in it
        del sys.path[0]
    from rlexp.cli import main

    main()
