"""Reports of runs: terminal tables, JSON and CSV."""
