"""The configs, shipped as the package rlexp.conf."""
