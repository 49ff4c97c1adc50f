"""A library with one purpose is imported for this purpose only, so a machine without it does everything else."""

from __future__ import annotations


def test_recording_leaks_and_summary_need_no_drawing_and_no_solver(fresh_python):
    """A GPU machine has torch, pandas and rich, but seldom graphviz, objgraph or ortools."""
    done = fresh_python("""
        import sys
        for name in ("graphviz", "objgraph", "ortools"):
            sys.modules[name] = None  # to import it fails
        import torch
        import memwatch

        with memwatch.profile(replay=True) as prof:
            torch.ones(100, requires_grad=True).exp().sum().backward()
        assert "Peak" in prof.summary(color=False)
        assert memwatch.find_leaks(lambda: None) == []
        assert memwatch.replay(memwatch.plan(prof)).identical
        print("done")
    """)
    assert done.stdout == "done\n", done.stderr


def test_recording_imports_no_sympy(fresh_python):
    """Sympy is large, and only the backend needs it: every recording would pay for its import."""
    done = fresh_python("""
        import sys
        import torch

        had_sympy = "sympy" in sys.modules  # some versions of torch import it with torch
        import memwatch

        with memwatch.profile() as prof:
            torch.ones(100, requires_grad=True).exp().sum().backward()
        prof.summary(color=False)
        assert had_sympy or "sympy" not in sys.modules
        print("done")
    """)
    assert done.stdout == "done\n", done.stderr
