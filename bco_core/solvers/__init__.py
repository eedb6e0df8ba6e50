"""Batched kernels; each certifies its answers or says that it cannot. No solver imports a problem.

numba keeps compiled kernels beside each file and compiles again when that file changes, not when a file does that it
takes pieces from: after a change to ``dual_simplex``, ``cost_simplex``, ``master`` or ``newton``, delete
``__pycache__/*.nb?``.
"""
