"""Tool families: the forms in which models write tool calls, one file each."""
