"""Part of meshscope."""
