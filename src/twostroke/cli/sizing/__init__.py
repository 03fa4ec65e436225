"""Commands that size a server: simulate one, plan one, find what ails one."""
