"""Extension of griffe that shows the parameters of classes beside their names."""

from __future__ import annotations

import griffe


class Constructors(griffe.Extension):
    """Gives a class with `__new__` an `__init__`, where griffe looks for the parameters of a class.

    The docstring of the class says what they mean, so that of `__init__` is not shown.
    """

    def on_class_members(self, *, cls: griffe.Class, **_: object) -> None:
        """Changes a class whose members are known."""
        new = cls.members.get("__new__")
        if isinstance(new, griffe.Function) and "__init__" not in cls.members:
            cls.set_member("__init__", griffe.Function("__init__", parameters=new.parameters))
        if "__init__" in cls.members:
            cls.members["__init__"].docstring = None
