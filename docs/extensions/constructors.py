"""Extensions of griffe that show the parameters of classes beside their names."""

from __future__ import annotations

import griffe


class Constructors(griffe.Extension):
    """Adds an `__init__` to a class with `__new__`, because griffe takes the parameters from `__init__`.

    The docstring of the class explains the parameters, so the docstring of `__init__` is hidden.
    """

    def on_class_members(self, *, cls: griffe.Class, **_: object) -> None:
        """Changes a class once its members are known."""
        new = cls.members.get("__new__")
        if isinstance(new, griffe.Function) and "__init__" not in cls.members:
            cls.set_member("__init__", griffe.Function("__init__", parameters=new.parameters))
        if "__init__" in cls.members:
            cls.members["__init__"].docstring = None


class Options(griffe.UnpackTypedDictExtension):
    """Shows the keys of a TypedDict in place of ``**arguments: Unpack[…]``.

    Griffe's own extension treats either all keys of a class as required or none, and moves the keys of a base
    class.
    """

    required = "pagestream.loading.options._RequiredOptions"

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """Leaves the keys where they are."""

    def on_function(self, *, func: griffe.Function, **_: object) -> None:
        """Replaces the parameter of a function, with the required keys first."""
        before = [parameter.name for parameter in func.parameters]
        super().on_function(func=func)
        added = [parameter for parameter in func.parameters if parameter.name not in before]
        if not added:
            return
        required = func.modules_collection[self.required].attributes
        for parameter in added:
            if parameter.name in required:
                parameter.default = None
        kept = [parameter for parameter in func.parameters if parameter.name in before]
        added.sort(key=lambda parameter: parameter.name not in required)
        func.parameters = griffe.Parameters(*kept, *added)
