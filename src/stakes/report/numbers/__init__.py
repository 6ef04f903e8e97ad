"""The report of decisions about outcomes that are numbers: what `stakes.report.page` puts into ``amounts.html``."""
