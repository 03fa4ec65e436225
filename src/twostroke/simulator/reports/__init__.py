"""Reports of runs: terminal tables, JSON and CSV, and a web page with charts."""
