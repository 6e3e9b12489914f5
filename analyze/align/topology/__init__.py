"""Which mesh axis each process group lies along: stated, named or inferred from its traffic."""
