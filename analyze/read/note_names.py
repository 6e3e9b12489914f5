"""How programs name what they do, in annotations of any profiler."""

DATA_NAMES = (
    r"(?:\S*dataloader_next|data[ _-]?load(?:ing|er)?|load[ _-]?data"
    r"|(?:data(?:set|loader)?|batch|samples?)[ _-]?(?:wait(?:ing)?|fetch(?:ing)?|next|generator|iterator)"
    r"|(?:get|next|load|fetch|read|wait[ _-]?for|fetching|loading)[ _-]?(?:next[ _-]?)?(?:data|batch(?:es|[ _-]samples)?)"
    r"|prefetch(?:er)?[ _.-]next)"
)
"""Waiting for the next batch, as a pattern for the whole name in any case."""
