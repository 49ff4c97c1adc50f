"""Classes that note every access to their objects that runs their code."""

from __future__ import annotations

ran: list[str] = []


class Watchful(type):
    """A class that records every question about it."""

    def __instancecheck__(cls, instance):
        ran.append("__instancecheck__")
        return super().__instancecheck__(instance)


def noticing(name):
    def method(self, *args, **kwargs):
        ran.append(name)
        raise RuntimeError(name)

    return method


NAMES = ("__getattr__", "__repr__", "__str__", "__eq__", "__hash__", "__len__", "__iter__", "__bool__", "__getitem__",
         "__contains__", "__call__", "__dir__", "__sizeof__", "__format__", "__index__")  # fmt: skip


def hostile(base, **more):
    """Make a class that notes every access to its objects that runs its code."""
    members = {name: noticing(name) for name in NAMES}
    members["secret"] = property(noticing("property"))
    members["__class__"] = property(noticing("__class__"))
    members["__dict__"] = property(noticing("__dict__")) if base is object and more.get("slots") else None
    members = {name: value for name, value in members.items() if value is not None}
    return Watchful("Hostile", (base,), members)
