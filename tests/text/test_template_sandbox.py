"""The sandbox bounds templates by Jinja's public hooks: no release can quietly drop a bound."""

from __future__ import annotations

from jinja2.compiler import CodeGenerator
from jinja2.sandbox import ImmutableSandboxedEnvironment

from twostroke.text.template_sandbox import BoundedSandbox


def test_no_part_of_jinja_is_patched() -> None:
    """Counting overrode two private methods of the compiler and one of the environment."""
    theirs = {name for kind in ImmutableSandboxedEnvironment.__mro__ for name in vars(kind)}
    private = {name for name in vars(BoundedSandbox) if name[0] == "_" and name[1] != "_"}
    assert not private & theirs
    assert BoundedSandbox.code_generator_class is CodeGenerator
