"""Batched kernels; each certifies its answers or reports that it cannot. No solver imports a problem.

numba caches compiled kernels next to each file and recompiles when that file changes, but not when a file changes from
which it inlines pieces: after a change to ``dual_simplex``, ``master``, ``basis_certificate`` or ``polyhedron``, delete
``__pycache__/*.nb?``.
"""
