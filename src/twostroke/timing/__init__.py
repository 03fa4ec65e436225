"""How long steps and transfers take: one model for all who ask, learned from what was measured."""
