"""``rlexp report``: many runs side by side, as one page that needs nothing but a browser. Free of torch."""

from rlexp.report.data import title_of
from rlexp.report.page import write_report

__all__ = ["title_of", "write_report"]
