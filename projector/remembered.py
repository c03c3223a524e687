"""What a sandbox's view knows from before its latest observation (DESIGN §6, Intent; §8.7). Pure."""

from __future__ import annotations

from msgspec.structs import replace

from bus.views import SandboxObject


def known_before(after: SandboxObject, before: SandboxObject) -> SandboxObject:
    """An object of which only bare metadata fitted a message: the rest is as it was last seen, as far as anybody can tell.

    An expiry that may have been renewed unseen is none.
    """
    same = after.generation == before.generation
    return replace(
        before,
        version=after.version,
        generation=after.generation,
        deleting=after.deleting,
        finalizers=after.finalizers,
        expire_time=before.expire_time if same else None,
        reduced=True,
        bare=True,
    )


def pause_generation(known: int | None, before: SandboxObject, after: SandboxObject) -> int | None:
    """P (DESIGN §6): the generation of the last change of spec.pause; None where versions were missed that may have changed it twice."""
    passed = after.generation - before.generation
    if passed < 0 or (after.bare and passed) or (before.bare and known is None):
        return None
    if before.pause != after.pause:
        return after.generation
    return known if passed <= 1 else None
