"""``python -m cog_trio`` is ``cog-trio``."""

from cog_trio.cli import main

if __name__ == "__main__":
    main()
