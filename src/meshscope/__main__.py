"""``python -m meshscope``: the same as the ``meshscope`` command."""

from .cli import main

main()
