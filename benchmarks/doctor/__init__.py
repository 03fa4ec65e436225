"""The doctor on faults that were made on purpose."""
