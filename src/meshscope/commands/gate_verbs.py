"""`meshscope gate` as a group of verbs: without one of them it checks a run."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from meshscope.probe.schema.message import message

from .starting import PlainGroup

CHECK = "check"


class GateGroup(PlainGroup):
    """Takes what is no verb of its own as the arguments of ``check``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``check`` before arguments that name no verb."""
        if args and args[0] not in self.commands and args[0] != "--help":
            if not args[0].startswith("-"):
                self._refuse_slip(args[0])
            args = [CHECK, *args]
        return super().parse_args(ctx, args)

    def _refuse_slip(self, word: str) -> None:
        """Refuse a word that is nearly a verb, unless it names what is there."""
        from meshscope.probe.schema.errors import ConfigError

        near = get_close_matches(word, self.commands, 1, 0.75)
        if near and not Path(word).exists():
            remedy = message("advice.meant_verb", verb=near[0])
            raise ConfigError(message("refused.no_command_and_no_run"), where=word, remedy=remedy)

    def get_help(self, ctx: Any) -> str:
        """Return the help of ``check``, then the other verbs."""
        check = self.commands[CHECK]
        own = type(ctx)(check, info_name=ctx.info_name, parent=ctx.parent)
        others = [command for name, command in self.commands.items() if name != CHECK]
        lines = [f"  {one.name:<10} {one.get_short_help_str(80)}" for one in others]
        return "\n".join([check.get_help(own), "", "Commands:", *lines])
