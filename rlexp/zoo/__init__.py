"""What the presets of conf/zoo promise and what they reached: targets, manifests, statistics, pages and pictures.

A manifest is one preset's results with everything they depend on. All figures that are shown anywhere are computed
from manifests: ``docs/benchmarks``, the page that ``rlexp bench zoo`` writes, and the digest ``results.json`` in this
package, which ``rlexp list zoo`` reads.
"""
