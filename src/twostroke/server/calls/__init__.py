"""What all dialects that generate text have in common: one neutral call, and its way down."""
