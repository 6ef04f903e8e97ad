"""The one exception, and the one warning, that stakes raises on purpose."""


class StakesError(ValueError):
    """Something the user gave cannot be used.

    The message says what was expected, what came instead, where, and what to do about it, in one
    line: the command line prints it as it is.
    """


class StakesWarning(UserWarning):
    """Something the user gave can be used, but is probably not what was meant."""


def listing(names: object, limit: int = 8) -> str:
    """``a, b, c``: a few names for an error message, with the number left out if there are many."""
    shown = [repr(name) for name in names]  # type: ignore[attr-defined]
    if len(shown) > limit:
        shown = [*shown[:limit], f"and {len(shown) - limit} more"]
    return ", ".join(shown)
