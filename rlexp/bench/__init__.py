"""Measuring rlexp against its peers on the same machine: ``rlexp bench speed|startup|solve|scaling|profile``.

Every contestant is a process of its own that runs its framework's real training loop; nothing here is imported by
training. The peers come with ``pip install "rlexp[bench]"`` and are never a dependency.
"""
