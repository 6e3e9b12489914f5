"""Which mesh axis each process group lies along: stated, named or told by its traffic."""
