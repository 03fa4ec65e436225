"""How long steps and transfers take, learned from what was measured."""
