"""All reports of a run on a table, from what it left in its folder: the page, and the same in Markdown."""

from stakes.report.markdown import write_markdown
from stakes.report.page import write_page
from stakes.tables.folder import RunFolder
from stakes.tables.run import TableResult


def write_report(folder: RunFolder) -> None:
    """Write report.html, and report.md with its figures; nothing is trained, and no data are read."""
    result = TableResult.load(folder)
    write_markdown(folder, result)
    write_page(folder, result)
