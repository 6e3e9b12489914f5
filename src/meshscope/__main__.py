"""``python -m meshscope``: the same as the ``meshscope`` command."""

from .entry import main

main()
