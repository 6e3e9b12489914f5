"""Acting when something first happens in this process: an import, a process group, an optimizer step."""
