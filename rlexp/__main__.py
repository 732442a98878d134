"""``python -m rlexp``."""

from rlexp.cli import main

if __name__ == "__main__":
    main()
